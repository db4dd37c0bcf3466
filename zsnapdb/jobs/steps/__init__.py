"""Executes steps and records them in a journal. Reads the state of unfinished moves and restores."""
