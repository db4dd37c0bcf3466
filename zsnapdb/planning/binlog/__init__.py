"""Decisions about binlogs: what to archive, what can be restored with them, which may be removed."""
