"""Tools of the project that are in no package."""
