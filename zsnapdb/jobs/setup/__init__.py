"""Setup of a host (find a server, configure its protection, move its files, verify the result), and its removal."""
