"""Clones: writable copies of snapshot sets, each with its own server.

User properties of a clone's datasets contain all records about the clone.
"""
