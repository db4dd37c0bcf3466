"""Replication, which includes the applier, a replica of a clone, and the replay of binlogs."""
