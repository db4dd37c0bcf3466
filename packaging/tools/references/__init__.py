"""Pages of `docs` that are made from the code. `make references` writes them; a unit test finds what is out of date."""
