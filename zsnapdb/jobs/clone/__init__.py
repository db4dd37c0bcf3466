"""Clones: writable copies of snapshot sets with servers of their own.

Their facts are user properties of their datasets.
"""
