"""Restores of servers and machines, rewinds, and the runbook."""
