"""Executes steps with a journal, and reads the state of unfinished moves and restores."""
