"""Drills, rescues and consolidations: jobs on ephemeral copies, which are removed after their use."""
