"""Views of clones, and of the answers to queries on clones: text for people, JSON for programs."""
