"""The configuration: one file for each section, and settings that puts them together."""
