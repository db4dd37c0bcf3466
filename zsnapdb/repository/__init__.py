"""The repository format, version 1: keys, manifests and every other object of a repository."""
