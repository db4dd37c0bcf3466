"""A backup: observe, lock, snapshot, unlock, prove, store. Also the cleanup after an interrupted backup."""
