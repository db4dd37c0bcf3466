"""Views of drills, rescues and consolidations."""
