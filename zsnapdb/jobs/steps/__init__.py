"""Plans of steps: what runs them, and the journals that say how far they came."""
