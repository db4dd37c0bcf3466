"""Decisions of drills and rescues."""
