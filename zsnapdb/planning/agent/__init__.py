"""The jobs of the agent: when and in which order they run."""
