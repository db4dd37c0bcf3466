"""Jobs of several hosts, run by an engine (Temporal): the workers on the hosts, and control next to the engine."""
