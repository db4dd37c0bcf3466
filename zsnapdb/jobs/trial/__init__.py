"""A copy tried out and removed again: drills and rescues."""
