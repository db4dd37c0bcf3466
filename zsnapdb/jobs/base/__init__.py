"""Common parts of all jobs: instance, host, events, clocks, locks, and the handling of interruptions."""
