"""What a server needs to start on a copy of another server's files."""
