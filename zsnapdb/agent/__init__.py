"""The agent: runs the jobs of this host by their schedules."""
