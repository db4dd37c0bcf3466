"""Decisions about the evidence log of an instance and its backups."""
