"""Decisions about what stays in a repository, and what is verified."""
