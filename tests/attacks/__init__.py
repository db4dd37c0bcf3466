"""Attacks by the parties of docs/threat-model.md, each run against the real system: the victim stays as it was."""
