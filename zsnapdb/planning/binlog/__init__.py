"""Decisions about binlogs: which to archive, which points can be restored, and which to remove."""
