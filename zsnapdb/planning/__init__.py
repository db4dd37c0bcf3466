"""Decisions as pure functions: they compute a result with reasons from facts, and use no clock and no I/O."""
