"""Notifications to people and external services. They never make their command fail or delay it."""
