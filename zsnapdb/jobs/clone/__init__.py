"""Clones: writable copies of snapshot sets, each with its own server.

User properties of a clone's datasets record everything that is known of the clone.
"""
