"""Every `zfs` call of the tool: argv lists, exact -H -p output, and one table that classifies errors."""
