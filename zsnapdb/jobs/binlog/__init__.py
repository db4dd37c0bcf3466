"""The binlog archive: read, stored and purged."""
