"""The job that makes a backup, and the cleanup after an interrupted backup."""
