"""Reads and checks objects on this host: snapshot sets, binlogs, replaced datasets, and files that production uses."""
