"""Jobs of several hosts on an engine (Temporal): the workers on the hosts, and control next to the engine."""
