"""A restore: plan, receive, recover, replay, check, hand over; and its runbook."""
