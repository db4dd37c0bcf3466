"""Notifications: tells people and services outside what happened. It never fails or delays what it tells about."""
