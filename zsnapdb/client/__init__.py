"""For programs of users: clones of this host, by the commands that people use."""
