"""Drills and rescues as text and JSON."""
