"""Which job of the agent runs now."""
