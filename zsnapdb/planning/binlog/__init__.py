"""Decisions about binlogs: what is archived, what they lead to, which may go."""
