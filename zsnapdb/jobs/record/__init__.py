"""The records of this host about its repository and its servers."""
