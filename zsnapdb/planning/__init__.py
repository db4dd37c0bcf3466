"""Decisions as pure functions, which compute a result and its reasons from facts, and use no clock and no I/O."""
