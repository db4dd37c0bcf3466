"""What every job uses: the instance, the host, events, the clock, locks, what an interruption leaves."""
