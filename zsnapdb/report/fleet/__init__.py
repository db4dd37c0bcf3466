"""The state of a fleet."""
