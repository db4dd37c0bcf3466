"""Decisions about restores."""
