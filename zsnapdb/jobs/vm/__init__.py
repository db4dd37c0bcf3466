"""Bases on zvols for virtual machines, and the machines that are cloned from these bases."""
