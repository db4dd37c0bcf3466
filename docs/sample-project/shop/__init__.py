"""A shop: customers order products of a warehouse, and pay."""
