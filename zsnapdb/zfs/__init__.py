"""Every `zfs` call of the tool: argv lists, exact -H -p output, one table that reads errors."""
