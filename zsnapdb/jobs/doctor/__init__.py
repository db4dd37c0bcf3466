"""Findings about a host and a server: diagnosis, advice, load, orphaned servers."""
