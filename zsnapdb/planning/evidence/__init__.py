"""The log of what was done to an instance and its backups."""
