"""Objects on this host: snapshot sets, binlogs, pools, replaced datasets, files that production uses."""
