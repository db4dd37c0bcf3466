"""A backup: look, lock, snapshot, unlock, prove, store; and what an interrupted one left."""
