"""What the host remembers about its repository and its servers."""
