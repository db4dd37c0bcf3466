"""Code that all packages share: errors, names, quantities, patterns, and files that are written atomically."""
