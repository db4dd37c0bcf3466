"""How a host is set up: what was found, which layout, which files and which commands. Pure."""
