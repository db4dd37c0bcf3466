"""Journalled steps: the journal, the executor, and the exchanges of production that are in progress."""
