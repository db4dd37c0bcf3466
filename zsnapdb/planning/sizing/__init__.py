"""Hours, memory, objects, requests and money for a server of a given size. Pure."""
