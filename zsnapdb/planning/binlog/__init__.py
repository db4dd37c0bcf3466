"""Decisions about binlogs: archiving, restorable points, removal."""
