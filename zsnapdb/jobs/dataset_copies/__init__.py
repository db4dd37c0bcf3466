"""Code that is shared by clones, virtual machines, bases, and the sets from which clones are created."""
