"""Replication: the applier, a replica of a clone, the replay of binlogs."""
