"""All instances of all hosts, as repositories show them."""
