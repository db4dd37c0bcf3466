"""The setup of a host: find a server, configure its protection, move its files, verify the result. Also its removal."""
