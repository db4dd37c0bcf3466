"""Server histories that once led to a wrong route, as events for `simulate`."""

from __future__ import annotations

Scenario = list[tuple[str, int]]

OVERLAP: Scenario = [("write", 0), ("backup", 0), ("write", 0), ("write", 0), ("failover", 2), ("write", 0)]
"""The successor's binlog starts with the last two transactions of the old server."""
SET_BACK_TO_A_CUT_FILE: Scenario = [
    ("rotate", 0),
    ("write", 0),
    ("write", 0),
    ("back", 0),
    ("write", 0),
    ("backup", 0),
    ("back", 16),
    ("write", 0),
]
"""The last history starts with a file of the first history, cut at the backup of the second history."""
SET_BACK_TWICE: Scenario = [
    ("write", 0),
    ("rotate", 0),
    ("write", 0),
    ("back", 0),
    ("write", 0),
    ("backup", 0),
    ("back", 16),
    ("write", 0),
]
"""The last history starts with two older files, and a backup between the two set-backs belongs to neither of them."""
SET_BACK_BEHIND_A_LOST_FILE: Scenario = [
    ("write", 0),
    ("back", 0),
    ("back", 1),
    ("back", 2),
    ("reset", 0),
    ("write", 0),
    ("write", 0),
    ("rotate", 0),
    ("rotate", 0),
    ("back", 0),
    ("write", 0),
    ("write", 0),
    ("backup", 0),
    ("back", 4),
    ("write", 0),
]
"""A history's first files are older than those of the previous history, which lost one of them."""
RESET_BEFORE_A_LOST_FILE: Scenario = [
    ("write", 0),
    ("rotate", 0),
    ("rotate", 0),
    ("rotate", 0),
    ("rotate", 0),
    ("reset", 0),
    ("backup", 0),
    ("rotate", 0),
]
"""The backup is in the first binlog after the reset. If that file is lost, an older binlog has its name and offset."""
NEW_SERVER_WITHOUT_ITS_ONLY_WRITE: Scenario = [
    ("write", 0),
    ("backup", 0),
    ("failover", 1),
    ("rotate", 0),
    ("write", 0),
]
"""Another server starts without any transaction. Its later writes are in its second file."""
ROTATED_AFTER_A_LOST_WRITE: Scenario = [("backup", 0), ("failover", 0), ("rotate", 0), ("write", 0), ("rotate", 0)]
"""A server without any transaction is replaced by one whose only write is in a lost file."""
TAKEN_OVER_WITH_COPIES: Scenario = [
    ("write", 0),
    ("backup", 0),
    ("write", 0),
    ("write", 0),
    ("rotate", 0),
    ("failover", 2),
    ("write", 0),
]
"""The new server's own file starts with copies of the old server's commits. The old server's last file is empty."""
BACKUP_IN_A_LOST_FILE: Scenario = [("write", 0), ("write", 0), ("backup", 0), ("write", 0), ("rotate", 0)]
"""The first file has the backup and a transaction after it. The second is empty and starts after that transaction."""
RESET_AFTER_A_TAKEOVER_AND_A_LOST_WRITE: Scenario = [
    ("write", 0),
    ("rotate", 0),
    ("backup", 0),
    ("failover", 1),
    ("back", 0),
    ("write", 0),
    ("reset", 0),
]
"""Another server starts without any transaction. The file with its only write is lost, and then it is reset."""
RESET_OF_WHICH_NO_FILE_IS_LEFT: Scenario = [
    ("write", 0),
    ("backup", 0),
    ("reset", 0),
    ("write", 0),
    ("write", 0),
    ("failover", 2),
]
"""The only file after the reset is lost. The next server's own file has copies of its commits, with used numbers."""
