"""Clones, and answers of clones, as text and JSON."""
