"""Setup of a host: facts, layout, files and commands. Pure."""
