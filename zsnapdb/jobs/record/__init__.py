"""This host's records about its repositories and its servers."""
