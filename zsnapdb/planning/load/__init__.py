"""Advice about memory, pool and records from the load of a server. Pure."""
