"""Restores and runbooks as text, HTML and JSON."""
