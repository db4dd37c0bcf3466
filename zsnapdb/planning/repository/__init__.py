"""Decisions about a repository: retention, verification, and the removal of leftovers."""
