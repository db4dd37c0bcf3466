"""FLUSH TABLES WITH READ LOCK: the last resort, for tables of other engines where nothing finer is there."""

from __future__ import annotations

from zsnapdb.errors import LockError
from zsnapdb.mysql.session import Session


class GlobalReadLock:
    """Refman 8.4, "FLUSH TABLES WITH READ LOCK". Needs RELOAD. Waits for every running statement, SELECTs too.

    While it waits, new writers already wait behind it, and a timed-out attempt leaves tables marked for flush; so it is
    not tried at all while a statement has been running for longer than `longest` seconds.
    """

    name = "ftwrl"
    # A plain flush first makes the locked one short.
    acquire: tuple[str, ...] = ("FLUSH NO_WRITE_TO_BINLOG TABLES", "FLUSH TABLES WITH READ LOCK")
    release = "UNLOCK TABLES"

    def __init__(self, longest: float) -> None:
        self.longest = longest

    def prepare(self, session: Session) -> None:
        rows = session.query(
            "SELECT id, time, LEFT(info, 80) FROM information_schema.processlist "
            "WHERE command IN ('Query', 'Execute') AND info IS NOT NULL AND id <> CONNECTION_ID() AND time >= %s ORDER BY time DESC",
            (self.longest,),
        )
        if rows:
            number, seconds, text = rows[0]
            raise LockError(
                f"not taking the global read lock: connection {number} has been running for {seconds} s: {text}",
                hint="every writer would wait behind it; let it end or kill it, then run again",
            )
