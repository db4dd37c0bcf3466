"""Decisions about drills and rescues."""
