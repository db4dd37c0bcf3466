"""For programs of users: clones of this host, by the same commands that people use."""
