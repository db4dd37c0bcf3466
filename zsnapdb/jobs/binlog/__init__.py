"""The binlog archive: reading, storing and purging binlogs."""
