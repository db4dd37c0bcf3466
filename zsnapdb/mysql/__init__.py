"""The database server: session, facts, paths, locks, binlog and process."""
