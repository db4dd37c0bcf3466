"""What differs between the two families of servers, each difference as a named fact. Pure.

A server's family is decided here, from its own words; who needs to know a difference asks for the fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.model import Flavour


@dataclass(frozen=True)
class Family:
    """Facts that hold for every server of a family, whatever its version."""

    flavour: Flavour
    title: str
    """Its name as people write it."""
    server_programs: tuple[str, ...]
    client_programs: tuple[str, ...]
    dump_programs: tuple[str, ...]
    binlog_programs: tuple[str, ...]
    dump_options: tuple[str, ...]
    """What the dump program needs beyond the common options, so that a dump changes no GTIDs where it is loaded."""
    option_section: str
    """The section of an option file that its server reads alone."""
    numbers_always: bool
    """Every transaction has a GTID; else a setting decides."""
    executed_variable: str
    """The global variable with the transactions that its binlog has."""
    wait_function: str
    """The SQL function that waits until GTIDs are applied: GTIDs, seconds; it returns 0."""
    has_uuid: bool
    """A server has an identity of its own in `server_uuid`."""
    names_connections: bool
    """Replication statements name a connection; else they have FOR CHANNEL."""
    finishes_ddl: bool
    """Crash recovery finishes a DDL statement that was under way and writes it to the binlog."""
    upgrades_by_program: bool
    """A newer server needs its upgrade program to be run; else its start upgrades the data."""
    redo_is_replaceable: bool
    """Redo and doublewrite files may be removed after a slow shutdown, and undo be made anew while it runs."""
    knows_expiry_switch: bool
    """A variable turns off the expiry of binlogs (binlog_expire_logs_auto_purge)."""
    atomic_ddl_from: tuple[int, ...]
    """First release whose DDL survives a crash whole (refman 8.0 and MariaDB manual, "Atomic DDL"): nothing to ask for."""
    relay_logs_from: tuple[int, ...]
    """First release that replays relay logs it did not receive itself."""
    gtids_are_sets: bool
    """What is executed is a set of intervals; else it is the last GTID of each domain."""
    gtids_carry_server_id: bool
    """A server that leaves transactions out must not use its server_id again: it is part of its GTIDs."""
    position_needs_replica_log: bool
    """A replica's position is known only if what it applies goes to its own binlog."""
    applier_may_leave_gaps: bool
    """Parallel workers may stop with transactions between them not applied, unless they preserve the commit order."""
    has_aria: bool
    """It has the Aria engine, with logs of its own."""
    limits_statements: bool
    """A variable ends statements that run for long (max_statement_time)."""
    lists_innodb_files: bool
    """`information_schema.files` has the files of InnoDB."""


MYSQL = Family(
    flavour=Flavour.MYSQL,
    title="MySQL",
    server_programs=("mysqld",),
    client_programs=("mysql",),
    dump_programs=("mysqldump",),
    binlog_programs=("mysqlbinlog",),
    dump_options=("--set-gtid-purged=OFF",),
    option_section="mysqld",
    numbers_always=False,
    executed_variable="gtid_executed",
    wait_function="WAIT_FOR_EXECUTED_GTID_SET",
    has_uuid=True,
    names_connections=False,
    finishes_ddl=False,
    upgrades_by_program=False,
    redo_is_replaceable=True,
    knows_expiry_switch=True,
    atomic_ddl_from=(8, 0, 0),
    # CHANGE REPLICATION SOURCE came with 8.0.23 (refman 8.0, "CHANGE REPLICATION SOURCE TO Statement").
    relay_logs_from=(8, 0, 23),
    gtids_are_sets=True,
    gtids_carry_server_id=False,
    position_needs_replica_log=True,
    applier_may_leave_gaps=True,
    has_aria=False,
    limits_statements=False,
    lists_innodb_files=True,
)
MARIADB = Family(
    flavour=Flavour.MARIADB,
    title="MariaDB",
    server_programs=("mariadbd", "mysqld"),
    client_programs=("mariadb", "mysql"),
    dump_programs=("mariadb-dump", "mysqldump"),
    binlog_programs=("mariadb-binlog", "mysqlbinlog"),
    dump_options=(),
    option_section="mariadbd",
    numbers_always=True,
    executed_variable="gtid_binlog_pos",
    wait_function="MASTER_GTID_WAIT",
    has_uuid=False,
    names_connections=True,
    finishes_ddl=True,
    upgrades_by_program=True,
    redo_is_replaceable=False,
    knows_expiry_switch=False,
    atomic_ddl_from=(10, 6, 1),
    relay_logs_from=(),
    gtids_are_sets=False,
    gtids_carry_server_id=True,
    position_needs_replica_log=False,
    applier_may_leave_gaps=False,
    has_aria=True,
    limits_statements=True,
    lists_innodb_files=False,
)
_FAMILIES = {family.flavour: family for family in (MYSQL, MARIADB)}


def family(flavour: Flavour) -> Family:
    """Return the facts of a family."""
    return _FAMILIES[flavour]


def flavour_in(*words: str) -> Flavour:
    """Return the family of a server by its version: MariaDB names itself in it; MySQL and Percona Server do not."""
    return Flavour.MARIADB if "mariadb" in " ".join(words).lower() else Flavour.MYSQL


def flavour_of(variables: Mapping[str, str]) -> Flavour:
    """Return the family of a server by its global variables, by lower-case name."""
    return flavour_in(variables.get("version", ""), variables.get("version_comment", ""))
