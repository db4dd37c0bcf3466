"""The command line: it parses arguments, calls a job, and prints the result. It makes no decisions."""
