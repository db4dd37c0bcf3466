"""A backup: observe, lock, snapshot, unlock, prove, store; and the leftovers of an interrupted one."""
