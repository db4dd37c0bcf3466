"""Recorded answers of servers, one file for each server in `recorded/`, and a session that replays them.

The `origin` of a file is "recorded" if a running server gave the answers, and "manual" if they come from manuals and
sources.

To record another server, start it with a root without a password on its socket. It must not be a replica: the script
makes it a replica of a dead address for a moment. Then run `python3 -m tests.unit.support.recorded_server NAME FAMILY
SOCKET 'which build it was'`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tests.unit.support.known_capabilities import KNOWN
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.locks import InstanceLock
from zsnapdb.mysql.probe import dialect
from zsnapdb.mysql.process import written_paths
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone import isolation
from zsnapdb.planning.server_copy import copy_options, source_facts

FOLDER = Path(__file__).parents[1] / "recorded"
ACCOUNT = "zsnapdb"

STATEMENTS = tuple(
    dict.fromkeys(known.what for known in KNOWN if not known.what.startswith(("information_schema.", "status ")))
)
COLUMNS = tuple(
    dict.fromkeys(
        known.what.removeprefix("information_schema.")
        for known in KNOWN
        if known.what.startswith("information_schema.")
    )
)
STATUS = tuple(dict.fromkeys(known.what.removeprefix("status ") for known in KNOWN if known.what.startswith("status ")))

PATH_COLUMNS = ("INNODB_SYS_DATAFILES.PATH", "FILES.FILE_NAME", "INNODB_SYS_TABLESPACES.FILENAME")
"""The source of the paths of tablespace files, by version."""

SYNTAX_ERROR = 1064


def variables_read() -> frozenset[str]:
    """Return the names of the global variables that zsnapdb reads, from its lists and its code."""
    listed = {
        *written_paths.DIRECTORIES,
        *written_paths.BASENAMES,
        *written_paths._FILES,
        *written_paths._KEYRING_FILES,
        *copy_options._PATHS,
        *source_facts.RECORDED,
        *isolation.READ,
        *(
            "replica_load_tmpdir",
            "slave_load_tmpdir",
            "gtid_executed",
            "gtid_binlog_pos",
            "log_replica_updates",
            "log_slave_updates",
        ),
    }
    code = "".join(path.read_text() for path in Path(written_paths.__file__).parents[2].rglob("*.py"))
    return frozenset(listed | set(re.findall(r'variables(?:\.get\(|\[)\s*"([a-z_]+)"', code)))


@dataclass(frozen=True)
class Recorded:
    """One file with the answers of a server, as returned by `answers_of`."""

    name: str
    family: str
    origin: str
    source: str
    answers: dict[str, Any]

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(number) for number in re.match(r"[\d.]+", self.answers["variables"]["version"])[0].split("."))  # type: ignore[index]

    @classmethod
    def load(cls, name: str) -> Recorded:
        return cls(**json.loads((FOLDER / f"{name}.json").read_text()))

    def save(self) -> None:
        (FOLDER / f"{self.name}.json").write_text(json.dumps(self.__dict__, indent=1, ensure_ascii=False) + "\n")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


# Replay: only the queries of probe() and published_position().


_OF_FILES = " WHERE engine = 'InnoDB' AND tablespace_name <> 'innodb_temporary'| WHERE name <> 'innodb_temporary'"


class RecordedSession(Session):
    """Replays the answers of a file. A query without a recorded answer fails the test."""

    def __init__(self, recorded: Recorded, **instead: Any) -> None:
        self._answers = {**recorded.answers, **instead}
        self.address = Address(ACCOUNT, Path("/run") / recorded.name)
        self.connection_id = 1
        self._forms: tuple[tuple[str, Callable[..., list[tuple[Any, ...]]]], ...] = (
            # Only variables that zsnapdb reads are recorded, plus the one that ends the list on every server.
            (r"SHOW GLOBAL VARIABLES", lambda: [*self._answers["variables"].items(), ("wait_timeout", "28800")]),
            (r"SHOW GLOBAL STATUS LIKE '(\w+)'", self._status),
            (
                r"SELECT COALESCE\(engine, 'unknown'\), COUNT\(\*\) FROM information_schema\.tables .*",
                lambda: [tuple(row) for row in self._answers["engines"].items()],
            ),
            (r"SELECT 1 FROM information_schema\.columns .*", self._column),
            (
                r"SELECT 1 FROM information_schema\.user_privileges .*",
                lambda: [(1,)] if self._answers["sees_all_tables"] else [],
            ),
            (rf"SELECT (\w+) FROM information_schema\.(\w+)(?:{_OF_FILES})?", self._paths),
            (
                r"SELECT COUNT\(\*\) FROM information_schema\.innodb_tables WHERE total_row_versions > 0",
                lambda: [(self._answers["row_versions"],)],
            ),
            (r"SELECT @@GLOBAL\.(\w+)", lambda name: [(self._answers["variables"][name],)]),
            (r"XA RECOVER", self._xa),
            (r"SELECT plugin_name, .* FROM information_schema\.plugins .*", list),
            (r"SELECT .* FROM mysql\.(?:plugin|func|component)", list),
        )

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        for pattern, answer in self._forms:
            match = re.fullmatch(pattern, sql, re.IGNORECASE | re.DOTALL)
            if match:
                own = parameters if answer == self._column else ()
                return answer(*match.groups(), *own)
        raise AssertionError(f"no answer is recorded for {sql!r}")

    def records(self, sql: str) -> list[dict[str, Any]]:
        assert self.understands(sql), f"{sql} is a syntax error there"
        if sql == self._answers["replica_status"]["statement"]:
            return list(self._answers["replica_status"]["rows"])
        if sql == self._answers["position"]["statement"]:
            return list(self._answers["position"]["rows"])
        raise AssertionError(f"no rows are written down for {sql!r}")

    def understands(self, statement: str) -> bool:
        return bool(self._answers["parser"][statement] != SYNTAX_ERROR)

    def _status(self, name: str) -> list[tuple[Any, ...]]:
        value = self._answers["status"][name]
        return [] if value is None else [(name, value)]

    def _column(self, table: str, column: str) -> list[tuple[Any, ...]]:
        return [(1,)] if self._answers["columns"][f"{table}.{column}"] else []

    def _paths(self, column: str, table: str) -> list[tuple[Any, ...]]:
        name = f"{table}.{column}".upper()
        assert self._answers["columns"][name], f"there is no column information_schema.{name} there"
        return [(path,) for path in self._answers["tablespace_files"][name]]

    def _xa(self) -> list[tuple[Any, ...]]:
        number = self._answers["xa_recover"]["zsnapdb"]
        if number:
            raise ServerError(f"`XA RECOVER` on {self.address}: denied ({number})")
        return []


# Recording.


def answers_of(session: Session, stranger: Session) -> dict[str, Any]:
    """Return the answers of a real server to all queries that are replayed.

    `session` has the grants of zsnapdb, `stranger` has none. Errors are recorded as numbers; 0 is no error.
    """
    variables = {str(name).lower(): str(value) for name, value in session.query("SHOW GLOBAL VARIABLES")}
    forms = dialect(session)
    has = {name: _has_column(session, *name.split(".")) for name in COLUMNS}
    return {
        "variables": {name: variables[name] for name in sorted(variables_read() & set(variables))},
        "parser": {statement: _error_of(session, f"PREPARE zsnapdb FROM '{statement}'") for statement in STATEMENTS},
        "columns": has,
        "engines": dict(
            session.query(
                "SELECT engine, COUNT(*) FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND engine IS"
                " NOT NULL AND table_schema = 'shop' GROUP BY engine ORDER BY engine"
            )
        ),
        "tablespace_files": {name: _paths(session, *name.split(".")) for name in PATH_COLUMNS if has[name]},
        "status": {
            name: next((str(row[1]) for row in session.query(f"SHOW GLOBAL STATUS LIKE '{name}'")), None)
            for name in STATUS
        },
        "sees_all_tables": True,
        "row_versions": 0,
        "xa_recover": {
            "zsnapdb": _error_of(session, "XA RECOVER"),
            "without any privilege": _error_of(stranger, "XA RECOVER"),
        },
        "position": {"statement": forms.position, "rows": session.records(forms.position)},
        "replica_status": {"statement": forms.channels, "rows": session.records(forms.channels)},
    }


def _error_of(session: Session, sql: str) -> int:
    try:
        session.query(sql)
    except ServerError as error:
        return int(error.message.rsplit("(", 1)[1].rstrip(")"))
    return 0


def _has_column(session: Session, table: str, column: str) -> bool:
    sql = (
        "SELECT 1 FROM information_schema.columns WHERE table_schema = 'information_schema' AND table_name = %s AND"
        " column_name = %s"
    )
    return bool(session.query(sql, (table, column)))


def _paths(session: Session, table: str, column: str) -> list[str]:
    where = {
        "FILES": " WHERE engine = 'InnoDB' AND tablespace_name <> 'innodb_temporary'",
        "INNODB_SYS_TABLESPACES": " WHERE name <> 'innodb_temporary'",
    }.get(table, "")
    return sorted(
        str(row[0]) for row in session.query(f"SELECT {column} FROM information_schema.{table}{where}") if row[0]
    )


@contextlib.contextmanager
def replica_of_nobody(root: Session) -> Iterator[None]:
    """Make the server a running replica of a dead address during the block.

    It fails if the server already is a replica.
    """
    assert not root.records(dialect(root).channels)
    new = root.understands("START REPLICA SQL_THREAD") and root.understands(
        "CHANGE REPLICATION SOURCE TO SOURCE_PORT = 1"
    )
    change, source, replica = ("REPLICATION SOURCE", "SOURCE", "REPLICA") if new else ("MASTER", "MASTER", "SLAVE")
    options = {"HOST": "'127.0.0.1'", "PORT": "1", "USER": "'nobody'", "LOG_FILE": "'binlog.000007'", "LOG_POS": "1234"}
    root.query(f"CHANGE {change} TO " + ", ".join(f"{source}_{name} = {value}" for name, value in options.items()))
    try:
        root.query(f"START {replica}")
        time.sleep(1)
        yield
    finally:
        root.query(f"STOP {replica}")
        root.query(f"RESET {replica} ALL")


def grants_of(root: Session) -> str:
    """Return the grants of zsnapdb's account in configs/grants-*.sql, in the syntax of the server's version."""
    version = str(root.value("SELECT VERSION()"))
    if "MariaDB" in version:
        old = tuple(int(number) for number in version.split("-")[0].split(".")) < (10, 5, 2)
        return (
            "RELOAD, PROCESS, REPLICATION CLIENT, SELECT"
            if old
            else "RELOAD, PROCESS, BINLOG MONITOR, REPLICA MONITOR, SELECT"
        )
    if not root.understands(InstanceLock.properties.statement):
        return "RELOAD, PROCESS, REPLICATION CLIENT, SELECT"
    return "BACKUP_ADMIN, RELOAD, PROCESS, REPLICATION CLIENT, XA_RECOVER_ADMIN, SELECT"


@contextlib.contextmanager
def a_shop(root: Session) -> Iterator[None]:
    """Create two user tables for the block, one InnoDB and one MyISAM, and drop them afterwards."""
    root.query("CREATE DATABASE shop")
    try:
        root.query("CREATE TABLE shop.orders (id INT PRIMARY KEY) ENGINE = InnoDB")
        root.query("CREATE TABLE shop.notes (id INT PRIMARY KEY) ENGINE = MyISAM")
        yield
    finally:
        root.query("DROP DATABASE shop")


def record(name: str, family: str, socket: str, source: str) -> Recorded:
    """Record the server on `socket`, whose root has no password. It creates an account, which stays."""
    with Session.open(Address("root", Path(socket)), SecretStr("")) as root:
        for user in (ACCOUNT, "stranger"):
            root.query(f"DROP USER IF EXISTS {user}@localhost")
            root.query(f"CREATE USER {user}@localhost IDENTIFIED BY 'for-a-moment'")
        root.query(f"GRANT {grants_of(root)} ON *.* TO {ACCOUNT}@localhost")
        with (
            a_shop(root),
            replica_of_nobody(root),
            Session.open(Address(ACCOUNT, Path(socket)), SecretStr("for-a-moment")) as session,
            Session.open(Address("stranger", Path(socket)), SecretStr("for-a-moment")) as stranger,
        ):
            return Recorded(
                name, family, "recorded", source, json.loads(json.dumps(answers_of(session, stranger), default=str))
            )


if __name__ == "__main__":
    record(*sys.argv[1:5]).save()
