"""Decisions about a server that runs on a copy."""
