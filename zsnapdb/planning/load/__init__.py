"""What the load of a server shows about its memory, its pool and its records. Pure."""
