"""All calls of `zfs`. The calls use argument lists and exact output (-H -p), and one table classifies their errors."""
