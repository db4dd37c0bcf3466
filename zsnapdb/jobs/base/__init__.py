"""Code that all jobs share: instances, hosts, events, clocks, locks, and the handling of interruptions."""
