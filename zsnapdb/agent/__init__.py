"""The agent, which runs the jobs of this host on their schedules."""
