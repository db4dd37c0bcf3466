"""Decisions about backups."""
