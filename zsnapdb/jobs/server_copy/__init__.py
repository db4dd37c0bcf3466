"""Preparation of a server's start on a copy of another server's files."""
