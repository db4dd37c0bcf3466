"""Jobs that move between hosts, on an engine (Temporal): workers of hosts, and control beside the server."""
