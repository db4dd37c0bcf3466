"""Jobs on a repository, such as init, list, verify, prune, copy, pin and status."""
