"""Attacks by the parties of docs/security.md, each run against the real system: the victim stays as it was."""
