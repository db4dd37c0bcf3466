"""FLUSH TABLES WITH READ LOCK: the last resort, for tables of other engines where nothing finer is there."""

from __future__ import annotations

import time

from zsnapdb.errors import LockNotGranted, ServerError
from zsnapdb.mysql.session import Session
from zsnapdb.planning.waiting import Statement, long_statements, to_kill

_SECONDS_TO_DIE = 2.0
_NO_SUCH_THREAD = "(1094)"


class GlobalReadLock:
    """Refman 8.4, "FLUSH TABLES WITH READ LOCK". Needs RELOAD. Waits for every running statement, SELECTs too.

    While it waits, new writers already wait behind it, and a timed-out attempt leaves tables marked for flush, so that queries
    on them go on waiting for the long one. So it is not tried at all while a statement has been running for `longest`
    seconds; `kill` (never, select, all) says whose statements may be ended for it.
    """

    name = "ftwrl"
    # A plain flush first makes the locked one short.
    acquire: tuple[str, ...] = ("FLUSH NO_WRITE_TO_BINLOG TABLES", "FLUSH TABLES WITH READ LOCK")
    release: tuple[str, ...] = ("UNLOCK TABLES",)

    def __init__(self, longest: float, kill: str) -> None:
        self.longest = longest
        self.kill = kill

    def prepare(self, session: Session) -> None:
        waiting = self._in_the_way(session)
        for statement in to_kill(waiting, self.kill):
            _kill(session, statement)
        if waiting and self.kill != "never":
            until = time.monotonic() + _SECONDS_TO_DIE
            while waiting and time.monotonic() < until:
                time.sleep(0.05)
                waiting = self._in_the_way(session)
        if waiting:
            raise LockNotGranted(
                f"not taking the global read lock: it would wait, and every writer behind it, for {waiting[0].describe()}",
                hint="let the statement end or kill it (`KILL QUERY`), raise lock.budget to wait for longer, or see lock.kill",
            )

    def _in_the_way(self, session: Session) -> list[Statement]:
        return long_statements(session.records("SHOW FULL PROCESSLIST"), frozenset({session.connection_id}), self.longest)


def _kill(session: Session, statement: Statement) -> None:
    try:
        session.query(f"KILL QUERY {statement.connection_id}")
    except ServerError as error:
        # It ended by itself in the meantime: as was wanted.
        if _NO_SUCH_THREAD not in error.message:
            raise
