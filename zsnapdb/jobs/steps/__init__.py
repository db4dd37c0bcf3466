"""Steps with a journal: the journal, the executor, and exchanges of production's datasets that are in progress."""
