"""Decisions of a restore."""
