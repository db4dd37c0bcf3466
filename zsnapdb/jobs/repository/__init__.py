"""Jobs on a repository: init, list, verify, prune, copy, pin, status, keys."""
