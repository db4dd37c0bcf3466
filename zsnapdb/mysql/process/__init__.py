"""The server's process: its programs, start and stop, the sandbox, and the servers that use given files."""
