"""Programs, start, stop and sandbox of a server's process, and the search for servers that use given files."""
