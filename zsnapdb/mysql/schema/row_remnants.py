"""Removes old row versions from a masked copy: from free space in tables, undo logs, statistics and logs.

After an UPDATE, the old row remains in at least seven places: free space of its page, undo, redo, the binlog,
histograms, log tables, and log files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Session
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.sql_quoting import quoted

_SPARE_UNDO = "zsnapdb_undo"
_PURGE_SECONDS = 600.0
_SETTLE_SECONDS = 60.0
_FILLER = "mysql.zsnapdb_filler"
_FILLER_BYTES = 128 << 10
_FILLER_COLUMNS = 40
_ARIA_LOG_BYTES = 8 << 20
_LOG_NAME = re.compile(r"\..+|-.*\.([0-9]{6,}|index)")
"""Endings of a log file's name after the base name.

In the relay logs of a replication channel, the ending includes the channel's name.
"""
_FOLDER_LOGS = ("galera.cache", "gcache.page.*")
"""Caches of cluster nodes in the data directory, which contain changed rows."""


@dataclass(frozen=True)
class SharedTablespace:
    """A tablespace that several tables share, and the path of its file as the server records it."""

    name: str
    path: str


def leave_no_binlog(session: Session) -> None:
    """Prepare the session for the user's masking statements: it writes no binlog, and waits at most 60 s for locks.

    Foreign key checks are not disabled, because ON UPDATE and ON DELETE must also change the child rows. `sql_mode` is
    not changed.
    """
    for statement in ("sql_log_bin = 0", "SESSION lock_wait_timeout = 60"):
        session.query(f"SET {statement}")


def prepare(session: Session) -> None:
    """Prepare the session for rebuilds, so that it writes no binlog and accepts old table definitions."""
    leave_no_binlog(session)
    for statement in ("SESSION sql_mode = ''", "SESSION foreign_key_checks = 0"):
        session.query(f"SET {statement}")


def settle(session: Session) -> None:
    """Wait until the server has finished its purges and written its changed pages after recovery.

    After the wait, only masking changes table files. The wait has a time limit. If the server still writes a file after
    the wait, the file is treated as changed by masking.
    """
    session.query("SET GLOBAL innodb_purge_rseg_truncate_frequency = 1")
    _is_purged_within(session, _SETTLE_SECONDS)
    session.query("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0")
    session.query("SET GLOBAL innodb_max_dirty_pages_pct = 0")
    session.query("FLUSH LOCAL TABLES")
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        if int(session.query("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")[0][1]) == 0:
            return
        time.sleep(0.05)


def drop_history(session: Session, chosen: Iterable[CatalogueTable]) -> None:
    """Delete the old row versions of system-versioned tables."""
    for table in chosen:
        session.query(f"DELETE HISTORY FROM {table.quoted}")


def rebuild(session: Session, chosen: Collection[CatalogueTable]) -> None:
    """Rebuild the tables.

    The server writes the rows of each table to a new file, and removes the old file with its free space.
    """
    if any(table.is_versioned for table in chosen):
        # Without this setting, the server refuses to alter a system-versioned table.
        session.query("SET SESSION system_versioning_alter_history = KEEP")
    for table in chosen:
        session.query(f"ALTER TABLE {table.quoted} FORCE")


def forget_values(session: Session, flavour: Flavour) -> bool:
    """Empty histograms, column statistics and log tables, because they contain values or statements.

    Return whether the server had histograms. MySQL stores histograms in its dictionary, whose tables cannot be rebuilt.
    """
    for name in ("general_log", "slow_log"):
        session.query(f"TRUNCATE TABLE mysql.{name}")
    if flavour is Flavour.MARIADB:
        session.query("DELETE FROM mysql.column_stats")
        session.query("ALTER TABLE mysql.column_stats FORCE")
        return False
    if not session.query(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = 'information_schema' AND table_name ="
        " 'COLUMN_STATISTICS'"
    ):
        return False
    histograms = session.query("SELECT schema_name, table_name, column_name FROM information_schema.column_statistics")
    for schema, name, column in histograms:
        session.query(
            f"ANALYZE NO_WRITE_TO_BINLOG TABLE {quoted(str(schema), str(name))} DROP HISTOGRAM ON {quoted(str(column))}"
        )
    return bool(histograms)


def overwrite_histograms(session: Session) -> None:
    """Create new histograms, so that they overwrite the free space of dropped histograms in the dictionary.

    When InnoDB reorganises a full page, it overwrites the page's free space. `empty_free_pages` overwrites pages that
    are completely free. A histogram contains the first 42 characters of a value (refman 8.4, "ANALYZE TABLE
    Statement").
    """
    columns = [f"c{number}" for number in range(_FILLER_COLUMNS)]
    session.query(f"CREATE TABLE {_FILLER} ({', '.join(f'{column} CHAR(50)' for column in columns)})")
    values = ", ".join(["CONCAT(%s, REPEAT('z', 39))"] * len(columns))
    for number in range(60):
        session.query(f"INSERT INTO {_FILLER} VALUES ({values})", [f"{number:03}"] * len(columns))
    for change in ("UPDATE HISTOGRAM", "DROP HISTOGRAM"):
        session.query(f"ANALYZE NO_WRITE_TO_BINLOG TABLE {_FILLER} {change} ON {', '.join(columns)}")
    session.query(f"DROP TABLE {_FILLER}")


def shared_tablespaces(session: Session, flavour: Flavour) -> tuple[SharedTablespace, ...]:
    """Return the general tablespaces of users (refman 8.4, "General Tablespaces"). MariaDB has no such tablespaces."""
    if flavour is Flavour.MARIADB:
        return ()
    rows = session.query(
        "SELECT t.name, d.path FROM information_schema.innodb_tablespaces t JOIN information_schema.innodb_datafiles d"
        " ON d.space = t.space WHERE t.space_type = 'General' AND t.name <> 'mysql' ORDER BY t.name"
    )
    return tuple(
        SharedTablespace(str(name), path.decode() if isinstance(path, bytes) else str(path)) for name, path in rows
    )


def purge(session: Session) -> None:
    """Wait until the undo logs contain no old row versions.

    Raises ServerError if the wait ends because a transaction still needs old row versions.
    """
    session.query("SET GLOBAL innodb_purge_rseg_truncate_frequency = 1")
    if not _is_purged_within(session, _PURGE_SECONDS):
        raise ServerError(
            "old row versions were not purged",
            hint="a prepared XA transaction of the source keeps them: run `XA RECOVER` on the source",
        )


def _is_purged_within(session: Session, seconds: float) -> bool:
    """Wait at most `seconds` for the undo logs to contain no old row versions. Return whether they contain none."""
    deadline = time.monotonic() + seconds
    while int(session.value("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def renew_aria_log(session: Session) -> None:
    """Make the Aria engine start a new log file. The server removes the old file at its next checkpoint.

    Aria starts a new file when the current file exceeds a new limit (MariaDB manual, aria_log_file_size). It removes
    files that recovery does not need (aria_log_purge_type). The smallest possible limit is 8 MiB, so this function
    fills the log up to this size.
    """
    session.query("SET GLOBAL aria_log_purge_type = immediate")
    session.query(f"CREATE TABLE {_FILLER} (filler LONGBLOB) ENGINE = Aria TRANSACTIONAL = 1")
    for _ in range(_ARIA_LOG_BYTES // _FILLER_BYTES + 16):
        session.query(f"INSERT INTO {_FILLER} VALUES (REPEAT('z', {_FILLER_BYTES}))")
    session.query(f"DROP TABLE {_FILLER}")
    session.query(f"SET GLOBAL aria_log_file_size = {_ARIA_LOG_BYTES}")


def renew_undo(session: Session) -> bool:
    """Empty the undo tablespaces one by one, with a temporary additional tablespace (refman 8.4, "Undo Tablespaces").

    Return False if the server does not support this. Raises ServerError if a tablespace does not become empty.
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
    datadir: Path,
    binlog: Path | None,
    relay: Path | None,
    redo: Path | None,
    doublewrite: Path | None,
    texts: Iterable[Path],
) -> None:
    """Remove the logs that a server recreates at its first start after a slow shutdown.

    These logs are binlogs, relay logs, MySQL's redo and doublewrite files, cluster caches, and the text logs `texts`.
    `binlog` and `relay` are base names. `redo` and `doublewrite` are folders (None: skipped). MariaDB's BASE.state is
    kept, because only this file contains the server's GTIDs (MariaDB manual, "gtid_binlog_state").
    """
    doomed = [path for path in texts if path.is_file()]
    doomed += [path for pattern in _FOLDER_LOGS for path in datadir.glob(pattern)]
    for base in (binlog, relay):
        if base is not None:
            doomed += [
                path
                for path in base.parent.iterdir()
                if path.name.startswith(base.name)
                and _LOG_NAME.fullmatch(path.name.removeprefix(base.name))
                and path.suffix != ".state"
                and path.is_file()
            ]
    if redo is not None:
        doomed += [*redo.glob("ib_logfile*"), *(redo / "#innodb_redo").glob("#ib_redo*")]
    if doublewrite is not None:
        doomed += doublewrite.glob("#ib_*.dblwr")
    for path in dict.fromkeys(doomed):
        safe_open.remove(path)


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
