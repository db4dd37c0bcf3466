"""The repository format, version 1: keys, manifests, and what may be called a backup."""
