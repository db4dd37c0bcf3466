"""The steps of a backup: observe, lock, snapshot, unlock, prove, store. Also the cleanup after an interruption."""
