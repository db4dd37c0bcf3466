"""The configuration: a module per section, and `settings`, which combines them."""
