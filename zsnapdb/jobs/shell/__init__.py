"""What the command line asks for while somebody types: examples and names of tables."""
