"""Code that all jobs share: instance, host, events, clocks, locks, and the handling of interruptions."""
