"""Decisions about retention, verification and leftovers in a repository."""
