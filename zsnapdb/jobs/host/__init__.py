"""Objects on this host: snapshot sets, binlogs, pools, replaced datasets, and files that production uses."""
