"""What a server is and can do, by asking it; never by its major version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zsnapdb.errors import ServerError
from zsnapdb.gtid import GtidSet
from zsnapdb.model import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.mysql.session import Session

SYSTEM_SCHEMAS = ("mysql", "sys", "information_schema", "performance_schema")

_STATUS_STATEMENTS = ("SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
"""MySQL 8.2+, MariaDB 10.5+, everything older: the first the server understands is used (refman 8.4, "SHOW MASTER STATUS")."""

_SYNTAX_ERROR = "(1064)"


@dataclass(frozen=True)
class ServerFacts:
    """What the server said of itself. `variables` are its global variables; `engines` those of user tables, with counts."""

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    variables: Mapping[str, str]
    engines: Mapping[str, int]
    tablespace_files: tuple[str, ...]
    sees_all_tables: bool = True
    redo_disabled: bool = False
    is_replica: bool = False
    gtid_purged: GtidSet = field(default_factory=GtidSet)

    @property
    def has_binlog(self) -> bool:
        return self.variables.get("log_bin", "OFF") == "ON"

    def describe(self) -> str:
        """Return the server in a few words."""
        return f"{self.flavour} {self.version}, server_id {self.server_id}" + (f", server_uuid {self.server_uuid}" if self.server_uuid else "")


def flavour_of(variables: Mapping[str, str]) -> Flavour:
    """Return the family: MariaDB names itself in version; MySQL and Percona Server do not."""
    words = variables.get("version", "") + variables.get("version_comment", "")
    return Flavour.MARIADB if "mariadb" in words.lower() else Flavour.MYSQL


def probe(session: Session) -> ServerFacts:
    """Ask the server everything a backup needs to know of it."""
    variables = {str(name).lower(): str(value) for name, value in session.query("SHOW GLOBAL VARIABLES")}
    flavour = flavour_of(variables)
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    engines = session.query(
        "SELECT engine, COUNT(*) FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND engine IS NOT NULL "
        f"AND table_schema NOT IN ({marks}) GROUP BY engine",
        SYSTEM_SCHEMAS,
    )
    files = session.query(
        "SELECT path FROM information_schema.innodb_sys_datafiles"
        if _has_table(session, "INNODB_SYS_DATAFILES")
        else "SELECT file_name FROM information_schema.files WHERE engine = 'InnoDB'"
        if flavour is Flavour.MYSQL
        else "SELECT filename FROM information_schema.innodb_sys_tablespaces"
    )
    return ServerFacts(
        flavour=flavour,
        version=variables["version"],
        server_uuid=variables.get("server_uuid"),
        server_id=int(variables.get("server_id", "0")),
        variables=variables,
        engines={str(name): int(count) for name, count in engines},
        tablespace_files=tuple(sorted(str(row[0]) for row in files if row[0])),
        sees_all_tables=_sees_all_tables(session),
        redo_disabled=any(str(row[1]) == "OFF" for row in session.query("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'")),
        is_replica=bool(replication_status(session, flavour)),
        gtid_purged=GtidSet.parse(variables.get("gtid_purged", "")) if flavour is Flavour.MYSQL else GtidSet(),
    )


def _sees_all_tables(session: Session) -> bool:
    """Whether the account has SELECT on everything: information_schema shows only what it may read."""
    return bool(
        session.query("SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'SELECT' AND REPLACE(grantee, CHAR(39), '') = CURRENT_USER()")
    )


def replication_status(session: Session, flavour: Flavour) -> list[dict[str, Any]]:
    """Return a row per replication channel the server is configured for."""
    statements = ("SHOW ALL SLAVES STATUS",) if flavour is Flavour.MARIADB else ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    for statement in statements:
        try:
            return session.records(statement)
        except ServerError as error:
            if _SYNTAX_ERROR not in error.message:
                raise
    return []


def _has_table(session: Session, name: str) -> bool:
    return bool(session.query("SELECT 1 FROM information_schema.tables WHERE table_schema = 'information_schema' AND table_name = %s", (name,)))


def published_position(session: Session, facts: ServerFacts) -> Position:
    """Return what the server publishes as its position now: binlog file and offset, executed GTIDs."""
    if not facts.has_binlog:
        return Position(facts.flavour, None, None, "server")
    row = None
    for statement in _STATUS_STATEMENTS:
        try:
            rows = session.records(statement)
        except ServerError as error:
            if _SYNTAX_ERROR not in error.message:
                raise
            continue
        row = rows[0] if rows else None
        break
    coordinates = BinlogCoordinates(str(row["File"]), int(row["Position"])) if row else None
    if facts.flavour is Flavour.MARIADB:
        text = str(session.value("SELECT @@GLOBAL.gtid_binlog_pos"))
    elif facts.variables.get("gtid_mode", "OFF").startswith("ON"):
        text = str(session.value("SELECT @@GLOBAL.gtid_executed"))
    else:
        return Position(facts.flavour, coordinates, None, "server")
    return Position(facts.flavour, coordinates, parse_gtids(facts.flavour, text), "server")
