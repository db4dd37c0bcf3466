"""Repositories as text and JSON."""
