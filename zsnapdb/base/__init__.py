"""Code that all packages share: errors, names, quantities, patterns, atomically written files."""
