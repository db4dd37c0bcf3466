"""Decisions about a server that runs on a copy of another server's files."""
