"""Common parts of all jobs: instance, host, events, clock, locks, protection against interruptions."""
