"""Generators for pages of `docs`. `make references` writes the pages; a unit test finds outdated ones."""
