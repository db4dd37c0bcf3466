"""Decisions about a server that runs on a copy of a server's files."""
