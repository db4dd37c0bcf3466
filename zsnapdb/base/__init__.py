"""Shared by all packages: errors, names, quantities, patterns, atomically written files."""
