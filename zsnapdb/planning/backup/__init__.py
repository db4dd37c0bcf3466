"""Decisions of a backup."""
