"""Jobs of several hosts on an engine (Temporal): the workers of the hosts, and control next to the engine."""
