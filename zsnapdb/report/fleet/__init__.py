"""Views of a fleet."""
