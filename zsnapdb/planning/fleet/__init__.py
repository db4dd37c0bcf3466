"""All instances of all hosts, according to their repositories."""
