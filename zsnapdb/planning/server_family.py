"""The differences between MySQL and MariaDB, each as a named fact. Pure.

This module determines the family of a server from its version texts. Other modules use the facts that they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.base.domain_types import Flavour


@dataclass(frozen=True)
class Family:
    """The facts that hold for every server of a family, regardless of its version."""

    flavour: Flavour
    title: str
    """The name for users."""
    server_programs: tuple[str, ...]
    client_programs: tuple[str, ...]
    local_client_options: tuple[str, ...]
    """Client options for a server on the same host.

    The options select a socket, and disable the check of the certificate.
    """
    dump_programs: tuple[str, ...]
    binlog_programs: tuple[str, ...]
    dump_options: tuple[str, ...]
    """Further options of the dump program. Loading such a dump does not change the GTIDs of the server."""
    option_section: str
    """The section of an option file that only servers of this family read."""
    numbers_always: bool
    """Whether every transaction has a GTID. If False, a setting of the server decides this."""
    executed_variable: str
    """The global variable with the GTIDs of the transactions in the binlog."""
    wait_function: str
    """The SQL function that waits until GTIDs are applied. Arguments: GTIDs, seconds.

    The function returns 0 on success.
    """
    has_uuid: bool
    """Whether the server has an identity in `server_uuid`."""
    names_connections: bool
    """Whether replication statements contain a connection name. If False, they contain FOR CHANNEL."""
    finishes_ddl: bool
    """Whether crash recovery completes an interrupted DDL statement and writes it to the binlog."""
    upgrades_by_program: bool
    """Whether an upgrade program must be run. If False, the newer server upgrades the data on startup."""
    redo_is_replaceable: bool
    """Whether redo and doublewrite files may be removed after a slow shutdown.

    Undo tablespaces can be recreated online.
    """
    knows_expiry_switch: bool
    """Whether a variable can turn off the expiry of binlogs (binlog_expire_logs_auto_purge)."""
    atomic_ddl_from: tuple[int, ...]
    """The first release with crash-safe atomic DDL (refman 8.0 and MariaDB manual, "Atomic DDL")."""
    removed_modes: tuple[str, ...]
    """Values of sql_mode that were removed in `removed_modes_from`.

    A later server does not start if its options contain one of these values.
    """
    removed_modes_from: tuple[int, ...]
    long_term_series: tuple[tuple[int, int], ...]
    """The series that no upgrade may skip. If there are none, a release can upgrade the files of every older release.
    """
    relay_logs_from: tuple[int, ...]
    """The first release that can replay relay logs from another server; empty if every release can."""
    ddl_xids_from: tuple[int, ...] | None
    """The first release whose query events have an XID if their DDL is atomic; None if they never have one."""
    gtids_are_sets: bool
    """Whether executed transactions are recorded as a set of intervals.

    If False, only the last GTID of each domain is recorded.
    """
    gtids_carry_server_id: bool
    """Whether GTIDs contain the server_id.

    If GTIDs contain it, a server that skips transactions must not reuse its old server_id.
    """
    follows_logged_keys: bool
    """Whether an applier follows foreign keys again, although the row events contain all rows that they changed.

    Only events of MySQL 9.6 and later say that they contain these rows.
    """
    position_needs_replica_log: bool
    """Whether a replica's position is known only if the replica writes applied transactions to its own binlog."""
    applier_may_leave_gaps: bool
    """Whether parallel workers may leave gaps between applied transactions when they stop.

    Parallel workers leave no gaps if they preserve the commit order.
    """
    has_aria: bool
    """Whether the server has the Aria engine, which has its own logs."""
    encrypts_each_event: bool
    """Whether binlogs are encrypted event by event, so that an event can be found only by reading from the start."""
    limits_statements: bool
    """Whether a variable limits the run time of statements (max_statement_time)."""
    lists_innodb_files: bool
    """Whether `information_schema.files` lists the files of InnoDB."""
    privileges_to_look: tuple[str, ...]
    """The global privileges for observing the server, and for flushing its tables and logs."""
    root_uses_socket: bool
    """Whether the system user root can log in as the account root through the socket (MariaDB 10.4: unix_socket)."""
    option_folder: str
    """The folder of option files that only servers of this family read on Debian."""
    versions_tables: bool
    """Whether tables can keep old versions of their rows (MariaDB manual, "System-Versioned Tables")."""
    page_compression_flag: int | None
    """The bit of `innodb_sys_tables.flag` of a table with compressed pages. None if only the create options tell it."""
    strict_variables: tuple[str, ...]
    """The variables without which a server on a copy would read the files differently from its source.

    Every server program must know these variables. In an option file, all other variables have the prefix `loose_`.
    """
    set_variables_query: str
    """The query for the variables that differ from the compiled default, and their origins.

    The query also works if the performance schema is off.
    """
    has_event_table: bool
    """Whether the table `mysql.event` contains the scheduled events in every release, and can be updated."""
    option_check: tuple[str, ...]
    """The options with which the server program checks its other options and ends, without using any files.

    MySQL has --validate-config since 8.0.16.
    """
    starts_without_keys: bool
    """Whether the server starts even without the keys of encrypted tables, although it cannot read these tables."""


_FILE_VARIABLES = (
    "innodb_page_size",
    "innodb_doublewrite",
    "lower_case_table_names",
    "character_set_server",
    "collation_server",
    "sql_mode",
)

MYSQL = Family(
    flavour=Flavour.MYSQL,
    title="MySQL",
    server_programs=("mysqld",),
    client_programs=("mysql",),
    local_client_options=(),
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
    # Refman 8.0, the section on features removed in MySQL 8.0.
    removed_modes=(
        *("DB2", "MAXDB", "MSSQL", "MYSQL323", "MYSQL40", "NO_AUTO_CREATE_USER", "NO_FIELD_OPTIONS"),
        *("NO_KEY_OPTIONS", "NO_TABLE_OPTIONS", "ORACLE", "POSTGRESQL"),
    ),
    removed_modes_from=(8, 0),
    # Refman 8.4, "MySQL Releases: Innovation and LTS". The campaign `upgrades` tests this with real servers.
    long_term_series=((5, 7), (8, 0), (8, 4), (9, 7)),
    # CHANGE REPLICATION SOURCE came with 8.0.23 (refman 8.0, "CHANGE REPLICATION SOURCE TO Statement").
    relay_logs_from=(8, 0, 23),
    ddl_xids_from=(8, 0),
    gtids_are_sets=True,
    gtids_carry_server_id=False,
    follows_logged_keys=True,
    position_needs_replica_log=True,
    applier_may_leave_gaps=True,
    has_aria=False,
    encrypts_each_event=False,
    limits_statements=False,
    lists_innodb_files=True,
    privileges_to_look=("PROCESS", "RELOAD", "REPLICATION CLIENT", "SHOW DATABASES"),
    root_uses_socket=False,
    option_folder="/etc/mysql/mysql.conf.d",
    versions_tables=False,
    page_compression_flag=None,
    strict_variables=(*_FILE_VARIABLES, "innodb_redo_log_capacity", "gtid_mode", "enforce_gtid_consistency"),
    set_variables_query=(
        "SELECT variable_name, TRIM(CONCAT(variable_source, ' ', variable_path)) FROM performance_schema.variables_info"
        " WHERE variable_source <> 'COMPILED'"
    ),
    has_event_table=False,
    option_check=("--validate-config",),
    starts_without_keys=True,
)
MARIADB = Family(
    flavour=Flavour.MARIADB,
    title="MariaDB",
    server_programs=("mariadbd", "mysqld"),
    client_programs=("mariadb", "mysql"),
    # From 11.4 on the client checks the server's certificate (MariaDB manual, "Zero-configuration TLS"), and 11.8 also
    # on a socket (observed in the lab).
    local_client_options=("--skip-ssl",),
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
    removed_modes=(),
    removed_modes_from=(),
    # MariaDB manual, "Upgrading Between Major MariaDB Versions".
    long_term_series=(),
    relay_logs_from=(),
    ddl_xids_from=None,
    gtids_are_sets=False,
    gtids_carry_server_id=True,
    follows_logged_keys=False,
    position_needs_replica_log=False,
    applier_may_leave_gaps=False,
    has_aria=True,
    encrypts_each_event=True,
    limits_statements=True,
    lists_innodb_files=False,
    privileges_to_look=("PROCESS", "RELOAD", "BINLOG MONITOR", "SLAVE MONITOR", "SHOW DATABASES"),
    root_uses_socket=True,
    option_folder="/etc/mysql/mariadb.conf.d",
    versions_tables=True,
    # dict0mem.h, DICT_TF_POS_PAGE_COMPRESSION; observed with 10.11 and 11.8.
    page_compression_flag=1 << 7,
    strict_variables=(
        *_FILE_VARIABLES,
        "innodb_undo_tablespaces",
        "innodb_log_file_size",
        "gtid_strict_mode",
        "gtid_domain_id",
        "binlog_format",
    ),
    # AUTO: the server has derived the value from the host or from other variables.
    set_variables_query=(
        "SELECT variable_name, TRIM(CONCAT(global_value_origin, ' ', COALESCE(global_value_path, '')))"
        " FROM information_schema.system_variables WHERE global_value_origin NOT IN ('COMPILE-TIME', 'AUTO')"
    ),
    has_event_table=True,
    option_check=("--verbose", "--help"),
    starts_without_keys=False,
)
_FAMILIES = {family.flavour: family for family in (MYSQL, MARIADB)}


def family(flavour: Flavour) -> Family:
    """Return the facts about the family of a flavour."""
    return _FAMILIES[flavour]


def flavour_in(*words: str) -> Flavour:
    """Return the flavour of a server from its version texts. Only version texts of MariaDB contain "MariaDB"."""
    return Flavour.MARIADB if "mariadb" in " ".join(words).lower() else Flavour.MYSQL


def flavour_of(variables: Mapping[str, str]) -> Flavour:
    """Return the flavour of a server from its global variables, which are given by lower-case name."""
    return flavour_in(variables.get("version", ""), variables.get("version_comment", ""))
