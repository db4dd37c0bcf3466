"""Steps with a journal: the journal, its executor, and the state of unfinished moves and restores."""
