"""The common parts of clones, machines, bases, and the sets from which clones are created."""
