"""Views of clones and of answers to queries on clones, as text for people and as JSON for programs."""
