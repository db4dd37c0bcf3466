"""The facts about a server that the pure decisions use. `mysql/probe.py` collects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zsnapdb.base.gtid import GtidSet
from zsnapdb.base.model import BinlogCoordinates, Flavour
from zsnapdb.planning.family import family
from zsnapdb.planning.server_plugins import ServerPlugins
from zsnapdb.planning.time_zone import ServerZone


def release_of(version: str) -> tuple[int, ...]:
    """Return a version as numbers, to be compared as a whole (8.0.30-log -> (8, 0, 30))."""
    return tuple(int(number) for number in version.split("-", 1)[0].split(".") if number.isdigit())


@dataclass(frozen=True)
class Dialect:
    """The form of each statement that this server's parser understands."""

    position: str = "SHOW MASTER STATUS"
    channels: str = "SHOW SLAVE STATUS"
    stop_applier: str = "STOP SLAVE SQL_THREAD"
    start_applier: str = "START SLAVE SQL_THREAD"


@dataclass(frozen=True)
class Channel:
    """A replication channel: its source, whether it runs, how far it has applied the source's binlog.

    `coordinates` and `gtids` (as printed) are the source's; `gtids` is empty if the server does not show them.
    `filters` are its replication filters, such as `Replicate_Ignore_DB = shop`.
    """

    name: str
    host: str
    port: int
    receiving: bool
    applying: bool
    coordinates: BinlogCoordinates | None
    gtids: str = ""
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerFacts:
    """The facts about a server, by its own answers.

    `variables` are its global variables by lower-case name. `engines` are the engines of user tables, with counts.
    `lock_statements` are the statements for lock strategies that its parser understands. `prepared_xa` is the number of
    external transactions in prepared state (None: the account may not list them). `row_versions` is the number of
    tables changed by INSTANT ADD or DROP COLUMN. `plugins` None: they were not asked for. `origins` are the variables
    that have no compiled default, with their origin (None: not known). `binlog_do` are the schemas that the binlog
    alone has, `binlog_ignore` those that it leaves out. If it has some alone, `schemas` are those of users. `zone` is
    that of its process (None: not asked for).
    """

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    variables: Mapping[str, str]
    engines: Mapping[str, int]
    tablespace_files: tuple[str, ...]
    lock_statements: frozenset[str] = frozenset()
    dialect: Dialect = Dialect()
    sees_all_tables: bool = True
    redo_disabled: bool = False
    channels: tuple[Channel, ...] = ()
    prepared_xa: int | None = 0
    row_versions: int = 0
    gtid_purged: GtidSet = field(default_factory=GtidSet)
    plugins: ServerPlugins | None = None
    origins: Mapping[str, str] | None = None
    binlog_do: tuple[str, ...] = ()
    binlog_ignore: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    zone: ServerZone | None = None

    @property
    def has_binlog(self) -> bool:
        return self.variables.get("log_bin", "OFF") in ("ON", "1")

    @property
    def has_gtids(self) -> bool:
        """Whether its transactions have GTIDs: always on MariaDB, by gtid_mode on MySQL."""
        return family(self.flavour).numbers_always or self.variables.get("gtid_mode", "OFF").startswith("ON")

    @property
    def is_percona(self) -> bool:
        return "percona" in self.variables.get("version_comment", "").lower()

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers."""
        return release_of(self.version)

    def describe(self) -> str:
        """Return the server in a few words."""
        return f"{self.flavour} {self.version}, server_id {self.server_id}" + (
            f", server_uuid {self.server_uuid}" if self.server_uuid else ""
        )
