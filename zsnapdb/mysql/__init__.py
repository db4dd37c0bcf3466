"""The database server: one owned session, what it is, where it writes, how it is held, its binlog, its process."""
