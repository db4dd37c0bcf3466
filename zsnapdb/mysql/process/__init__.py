"""The server's process: programs, start and stop, the sandbox, which server uses which files."""
