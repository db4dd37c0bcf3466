"""What every room uses: errors, names, quantities, patterns, files written whole."""
