"""Checks whether an instance is protected as its objectives require, and records the evidence."""
