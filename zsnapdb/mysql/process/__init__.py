"""The server's process: its programs, its start and stop, the sandbox, and the search for servers on given files."""
