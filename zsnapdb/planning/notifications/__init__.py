"""Who hears of what."""
