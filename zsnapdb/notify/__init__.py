"""Notifications to people and external services. They never delay a command or make it fail."""
