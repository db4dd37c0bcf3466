"""Library for users' programs. It creates clones on this host by the same commands that people use."""
