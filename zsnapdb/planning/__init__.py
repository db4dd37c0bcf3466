"""Pure decisions: given facts, an answer with its reasons. No clock, no I/O."""
