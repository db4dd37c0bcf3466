"""Data for the completion of command lines: examples and table names."""
