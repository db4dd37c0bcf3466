"""What is done to and asked of a repository: init, list, verify, prune, copy, pin, status, keys."""
