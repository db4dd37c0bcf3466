"""The server's binlogs: events, rows, transactions, GTIDs, and the end of a binlog."""
