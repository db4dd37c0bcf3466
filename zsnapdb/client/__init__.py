"""Library for users' programs: clones of this host, through the same commands that people use."""
