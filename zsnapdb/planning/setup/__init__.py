"""Decisions about the setup of a host: its facts, layout, files and commands. Pure."""
