"""All calls of `zfs`: argument lists, exact output of -H -p, and one table that classifies errors."""
