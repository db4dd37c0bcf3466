"""Views of repositories."""
