"""Results as text for people and as JSON for programs, from the same objects."""
