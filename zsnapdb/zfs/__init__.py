"""All calls of `zfs`. They use argument lists and exact output (-H -p), and one table classifies their errors."""
