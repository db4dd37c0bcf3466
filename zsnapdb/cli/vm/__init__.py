"""The commands of `zsnapdb vm`."""
