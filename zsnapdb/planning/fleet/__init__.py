"""Decisions about all instances of all hosts."""
