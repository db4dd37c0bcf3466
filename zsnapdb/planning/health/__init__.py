"""Decisions about the health of an instance: its objectives, notifications and daily summary."""
