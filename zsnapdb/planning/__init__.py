"""Pure decisions: functions from facts to a result with its reasons. No clock, no I/O."""
