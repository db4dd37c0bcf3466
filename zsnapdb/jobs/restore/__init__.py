"""Restores: plan, receive, recover, replay, check, hand over; and the runbook."""
