"""Decisions about virtual machines: their domains, names, identities and space. Pure."""
