"""Ephemeral copies that are used and removed again: drills and rescues."""
