"""All calls of `zfs`: with argument lists, exact output (-H -p), and one table that classifies errors."""
