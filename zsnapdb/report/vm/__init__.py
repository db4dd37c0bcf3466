"""Views of virtual machines."""
