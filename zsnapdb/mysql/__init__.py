"""The database server, with its session, facts, paths, locks, binlog and process."""
