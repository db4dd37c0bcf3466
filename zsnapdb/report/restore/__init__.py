"""Views of restores, rewinds and runbooks."""
