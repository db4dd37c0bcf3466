"""The common parts of clones, virtual machines, bases, and the sets from which clones are created."""
