"""Decisions about a server that is started on a copy."""
