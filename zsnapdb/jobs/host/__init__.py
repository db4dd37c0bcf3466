"""What lies on this host: snapshot sets, binlogs, pools, replaced datasets, the files that production uses."""
