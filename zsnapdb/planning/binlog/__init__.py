"""Decides which binlogs are archived, which binlogs are removed, and which points can be restored."""
