"""Bases of virtual machines, and clones of bases on zvols."""
