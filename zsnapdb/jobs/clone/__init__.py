"""Clones: writable copies of snapshot sets, each with its own server.

All records about a clone are in the ZFS user properties of its datasets.
"""
