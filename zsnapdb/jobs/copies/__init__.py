"""What clones, machines, bases and the sets that clones are made from have in common."""
