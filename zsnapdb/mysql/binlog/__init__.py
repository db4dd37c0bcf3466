"""The server's binlogs: events, rows, transactions, GTIDs, and how far they reach."""
