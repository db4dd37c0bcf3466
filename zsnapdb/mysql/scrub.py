"""Removes the old versions of changed rows from a masked copy: free space in tables, undo, statistics, logs.

An UPDATE leaves the old row in at least seven places: free space of its page, undo, redo, the binlog, histograms, log
tables, log files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from zsnapdb.errors import ServerError
from zsnapdb.model import Flavour
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.masking import Table
from zsnapdb.planning.quoting import quoted

_SPARE_UNDO = "zsnapdb_undo"
_PURGE_SECONDS = 600.0


def prepare(session: Session) -> None:
    """Prepare the session and the server.

    Nothing goes to the binlog, the server remembers every changed table, and old table definitions can be rebuilt.
    """
    for statement in (
        "sql_log_bin = 0",
        "SESSION sql_mode = ''",
        "SESSION foreign_key_checks = 0",
        "SESSION lock_wait_timeout = 60",
    ):
        session.query(f"SET {statement}")
    count = int(session.value("SELECT COUNT(*) FROM information_schema.tables"))
    # InnoDB forgets the change time of a table with its definition; the cache keeps this many definitions.
    cache = max(int(session.value("SELECT @@GLOBAL.table_definition_cache")), count + 400)
    session.query(f"SET GLOBAL table_definition_cache = {cache}")


def tables(session: Session, flavour: Flavour, since: float) -> list[Table]:
    """Return all tables, and whether each was changed since `since` (seconds since 1970, clock of the server).

    InnoDB reports changes since its start (refman 8.4, "The INFORMATION_SCHEMA TABLES Table", UPDATE_TIME), other
    engines the time of their files.
    """
    if flavour is Flavour.MYSQL:
        session.query("SET SESSION information_schema_stats_expiry = 0")
    rows = session.query(
        "SELECT table_schema, table_name, COALESCE(engine, ''), COALESCE(UNIX_TIMESTAMP(update_time) >= %s, FALSE) FROM"
        " information_schema.tables WHERE table_type = 'BASE TABLE' ORDER BY table_schema, table_name",
        (int(since),),
    )
    return [Table(str(schema), str(name), str(engine), bool(changed)) for schema, name, engine, changed in rows]


def rebuild(session: Session, chosen: Iterable[Table]) -> None:
    """Rebuild the tables: their rows go to new files, and the old files with their free space are removed."""
    for table in chosen:
        session.query(f"ALTER TABLE {table.quoted} FORCE")


def forget_values(session: Session, flavour: Flavour) -> None:
    """Empty other places that keep values or statements: histograms, column statistics, log tables."""
    for name in ("general_log", "slow_log"):
        session.query(f"TRUNCATE TABLE mysql.{name}")
    if flavour is Flavour.MARIADB:
        session.query("DELETE FROM mysql.column_stats")
        session.query("ALTER TABLE mysql.column_stats FORCE")
        return
    if not session.query(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = 'information_schema' AND table_name ="
        " 'COLUMN_STATISTICS'"
    ):
        return
    for schema, name, column in session.query(
        "SELECT schema_name, table_name, column_name FROM information_schema.column_statistics"
    ):
        session.query(
            f"ANALYZE NO_WRITE_TO_BINLOG TABLE {Table(str(schema), str(name), '', True).quoted} DROP HISTOGRAM ON"
            f" {quoted(str(column))}"
        )


def purge(session: Session) -> None:
    """Wait until undo has no old row version. ServerError if a transaction still needs some."""
    session.query("SET GLOBAL innodb_purge_rseg_truncate_frequency = 1")
    deadline = time.monotonic() + _PURGE_SECONDS
    while int(session.value("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")):
        if time.monotonic() > deadline:
            raise ServerError(
                "old row versions were not purged",
                hint="a prepared XA transaction of the source keeps them: run `XA RECOVER` on the source",
            )
        time.sleep(0.05)


def renew_undo(session: Session) -> bool:
    """Empty the undo tablespaces one by one, with a temporary spare one (refman 8.4, "Undo Tablespaces").

    Return False if the server cannot do this.
    """
    if not session.understands(f"CREATE UNDO TABLESPACE {_SPARE_UNDO} ADD DATAFILE '{_SPARE_UNDO}.ibu'"):
        return False
    names = [
        str(row[0])
        for row in session.query(
            "SELECT name FROM information_schema.innodb_tablespaces WHERE space_type = 'Undo' AND state = 'active'"
        )
    ]
    session.query(f"CREATE UNDO TABLESPACE {_SPARE_UNDO} ADD DATAFILE '{_SPARE_UNDO}.ibu'")
    for name in (*names, _SPARE_UNDO):
        session.query(f"ALTER UNDO TABLESPACE {name} SET INACTIVE")
        deadline = time.monotonic() + _PURGE_SECONDS
        while (
            session.value(f"SELECT state FROM information_schema.innodb_tablespaces WHERE name = '{name}'") != "empty"
        ):
            if time.monotonic() > deadline:
                raise ServerError(f"the undo tablespace {name} did not become empty", hint="see the clone's error log")
            time.sleep(0.05)
        session.query(
            f"DROP UNDO TABLESPACE {name}" if name == _SPARE_UNDO else f"ALTER UNDO TABLESPACE {name} SET ACTIVE"
        )
    return True


def remove_logs(
    binlog: Path | None, relay: Path | None, redo: Path | None, doublewrite: Path | None, texts: Iterable[Path]
) -> None:
    """Remove the logs that a server creates again after a slow shutdown.

    These are binlogs, relay logs, MySQL's redo and doublewrite files, and the text logs `texts`.
    `binlog` and `relay` are base names. MariaDB's BASE.state stays: only this file has the GTIDs of the server (MariaDB
    manual, "gtid_binlog_state"). `redo` and `doublewrite` are the folders of these files; None: they are not touched.
    """
    doomed = [path for path in texts if path.is_file()]
    for base in (binlog, relay):
        if base is not None:
            doomed += [
                path
                for path in base.parent.iterdir()
                if path.name.startswith(f"{base.name}.") and path.suffix != ".state" and path.is_file()
            ]
    if redo is not None:
        doomed += [*redo.glob("ib_logfile*"), *(redo / "#innodb_redo").glob("#ib_redo*")]
    if doublewrite is not None:
        doomed += doublewrite.glob("#ib_*.dblwr")
    for path in doomed:
        os.unlink(path)


def text_logs(variables: Mapping[str, str]) -> list[str]:
    """Return the absolute paths of the log files that can contain statements."""
    datadir = variables["datadir"]
    paths = [
        variables.get(name, "")
        for name in ("general_log_file", "slow_query_log_file", "log_slow_query_file", "log_error")
    ]
    return [
        path if path.startswith("/") else os.path.join(datadir, path) for path in paths if path and path != "stderr"
    ]
