"""Bases of virtual machines, and clones of them on zvols."""
