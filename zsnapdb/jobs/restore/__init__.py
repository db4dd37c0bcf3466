"""Restores, with the steps plan, receive, recover, replay, check and handover. Also the runbook."""
