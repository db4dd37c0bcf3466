"""Decisions about clones."""
