"""Library for users' programs: clones of this host, created by the same commands that people use."""
