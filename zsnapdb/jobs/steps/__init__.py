"""Journalled steps: the journal, the executor, and which exchanges of production are under way."""
