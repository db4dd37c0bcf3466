"""Bases on zvols, and the virtual machines that are cloned from these bases."""
