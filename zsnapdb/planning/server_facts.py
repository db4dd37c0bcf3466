"""Facts about a server for the pure decisions. `mysql/probe.py` collects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import GtidSet
from zsnapdb.planning.server_family import family
from zsnapdb.planning.server_plugins import ServerPlugins
from zsnapdb.planning.time_zone import ServerZone


def release_of(version: str) -> tuple[int, ...]:
    """Return a version as numbers for comparison (8.0.30-log -> (8, 0, 30))."""
    return tuple(int(number) for number in version.split("-", 1)[0].split(".") if number.isdecimal())


@dataclass(frozen=True)
class Dialect:
    """The form of each statement that the server's parser accepts."""

    position: str = "SHOW MASTER STATUS"
    channels: str = "SHOW SLAVE STATUS"
    stop_applier: str = "STOP SLAVE SQL_THREAD"
    start_applier: str = "START SLAVE SQL_THREAD"


@dataclass(frozen=True)
class Channel:
    """A replication channel: its source, its state, and how far it has applied the source's binlog.

    `coordinates` and `gtids` (as printed) are those of the source. `gtids` is empty if the server does not show them.
    `filters` are the replication filters, such as `Replicate_Ignore_DB = shop`.
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
    """Facts about a server, from its own answers.

    - `variables`: the global variables by lower-case name
    - `engines`: the storage engines of user tables, with table counts
    - `lock_statements`: the statements for lock strategies that the parser accepts
    - `prepared_xa`: the number of prepared external XA transactions (None: the account may not list them)
    - `row_versions`: the number of tables that INSTANT ADD or DROP COLUMN changed
    - `plugins`, `zone`: the plugins, and the time zone of the server process (None: not queried)
    - `origins`: the variables without their compiled default, with their origin (None: unknown)
    - `binlog_do`, `binlog_ignore`: the schemas that alone are in the binlog, and those that are not
    - `schemas`: the user schemas, if `binlog_do` is not empty
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
        """Whether transactions have GTIDs: always on MariaDB, by gtid_mode on MySQL."""
        return family(self.flavour).numbers_always or self.variables.get("gtid_mode", "OFF").startswith("ON")

    @property
    def is_percona(self) -> bool:
        return "percona" in self.variables.get("version_comment", "").lower()

    @property
    def release(self) -> tuple[int, ...]:
        return release_of(self.version)

    def describe(self) -> str:
        return f"{self.flavour} {self.version}, server_id {self.server_id}" + (
            f", server_uuid {self.server_uuid}" if self.server_uuid else ""
        )
