"""`zsnapdb clone …`: a file per command, or per pair of commands."""
