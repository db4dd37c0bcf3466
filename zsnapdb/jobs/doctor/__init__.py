"""Findings about a host and its servers: checks, advice, load, and orphaned servers."""
