"""Whether the objectives of an instance are met."""
