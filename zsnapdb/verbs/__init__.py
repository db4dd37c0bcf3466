"""Requests about clones and the protection of instances, each declared once.

API routes, the arguments of `zsnapdb-clone` and the helper, roles and clients are derived from these declarations.
"""
