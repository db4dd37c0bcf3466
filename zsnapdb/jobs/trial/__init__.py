"""Ephemeral copies, which are removed after their use: drills and rescues."""
