"""Chooses the destination, the new name and the way of transport for a rescued table. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import parse_qs, unquote, urlsplit

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.planning.schema_content import CatalogueTable, ColumnName, RowPlace, SchemaContent
from zsnapdb.planning.server_facts import release_of
from zsnapdb.planning.sql_quoting import TableName, parse_table, quoted

_LONGEST_NAME = 64
"""Maximum number of characters in the name of a table or schema (refman 8.4, "Identifier Length Limits")."""
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class DumpFile:
    """A destination: a new file for the dump. No file with this path may exist yet."""

    path: str


@dataclass(frozen=True)
class LiveServer:
    """A destination: a running server.

    If `schema` is None, the table goes to a schema with the name of its original schema.
    """

    user: str
    host: str
    port: int
    socket: str | None
    schema: str | None


def parse_destination(text: str) -> DumpFile | LiveServer:
    """Return the destination of `--into`.

    Raises UsageError if an address contains a password, because every user of the host can read command lines.
    """
    if not re.match(r"^(mysql|mariadb)://", text):
        if "://" in text:
            raise UsageError(
                f"cannot deliver to {text.split('://')[0]}:// addresses",
                hint="give a file, or mysql://user@host:port/schema",
            )
        return DumpFile(text)
    parts = urlsplit(text)
    if parts.password is not None:
        raise UsageError(
            "the address contains a password, which every user of this host can read",
            hint="remove it and use --password-file",
        )
    if not parts.username:
        raise UsageError(
            "the address names no user", hint="write mysql://user@host:port/schema, with ?socket=/path for a socket"
        )
    try:
        port = parts.port or 3306
    except ValueError as error:
        raise UsageError(
            f"the address has no usable port: {error}", hint="write mysql://user@host:port/schema"
        ) from error
    socket = parse_qs(parts.query).get("socket", [None])[0]
    return LiveServer(
        unquote(parts.username), parts.hostname or "127.0.0.1", port, socket, unquote(parts.path.strip("/")) or None
    )


def new_name(original: TableName, chosen: str | None, schema: str | None, as_of: datetime) -> TableName:
    """Return the name on the live server: the chosen name, or else the old name followed by the time of the data.

    The argument `chosen` is `table` or `schema.table`, or the new name of a schema. The destination is the schema
    `schema`.
    """
    stamp = f"_{as_of:%Y%m%d_%H%M%S}"
    if original.table is None:
        return TableName(chosen or original.schema[: _LONGEST_NAME - len(stamp)] + stamp, None)
    if chosen is None:
        return TableName(schema or original.schema, original.table[: _LONGEST_NAME - len(stamp)] + stamp)
    return parse_table(chosen) if "." in chosen or "`" in chosen else TableName(schema or original.schema, chosen)


class Transport(StrEnum):
    """The way in which rows are transferred to a live server: as a tablespace or with a dump."""

    TABLESPACE = "tablespace"
    DUMP = "dump"


@dataclass(frozen=True)
class ServerKind:
    """The facts that determine whether a server can read tablespaces of another server."""

    flavour: Flavour
    version: str
    page_size: int
    has_binlog: bool

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True)
class TableKind:
    """The facts that determine whether a table can be transferred as a tablespace."""

    name: TableName
    engine: str
    options: str
    has_fulltext: bool
    is_file_per_table: bool
    is_versioned_by_transaction: bool = False


@dataclass(frozen=True)
class TransportChoice:
    """The way of transport, with the reason."""

    transport: Transport
    reason: str


def choose_transport(
    requested: Transport | None, table: TableKind, source: ServerKind, target: ServerKind, *, is_local: bool
) -> TransportChoice:
    """Return the way in which the table is transferred to the live server.

    If `is_local` is set, the live server's files are on this host and writable.

    By default, a server with a binlog gets a dump, because loading a dump writes the rows to its binlog. ALTER TABLE …
    IMPORT TABLESPACE would need the file on every replica and in every replay (refman 8.4, "Importing InnoDB Tables").
    Raises PreflightError if the requested way of transport is not possible.
    """
    against = _objection(table, source, target, is_local=is_local)
    if requested is Transport.DUMP:
        return TransportChoice(Transport.DUMP, "requested")
    if requested is Transport.TABLESPACE:
        if against is not None:
            raise PreflightError(
                f"{table.name} cannot move as a tablespace: {against}",
                hint="leave --transport out; the table is then dumped and loaded",
            )
        return TransportChoice(Transport.TABLESPACE, "requested")
    if against is None and target.has_binlog:
        against = "the server has a binlog: its replicas and a recovery from it would not find the file"
    return (
        TransportChoice(Transport.TABLESPACE, "the servers are of one series, and its files are here")
        if against is None
        else TransportChoice(Transport.DUMP, against)
    )


def _objection(table: TableKind, source: ServerKind, target: ServerKind, *, is_local: bool) -> str | None:
    objections = (
        (table.name.table is None, "a schema goes by dump"),
        (table.engine.lower() != "innodb", f"its engine is {table.engine}"),
        ("partitioned" in table.options.lower(), "it is partitioned"),
        ("encrypt" in table.options.lower(), "it is encrypted"),
        (table.has_fulltext, "it has a FULLTEXT index, which FLUSH TABLES … FOR EXPORT does not write out"),
        (table.is_versioned_by_transaction, "its history names transactions of the server it comes from"),
        (not table.is_file_per_table, "it has no file of its own"),
        (not is_local, "the server's files are not on this host, or not ours to write"),
        (
            source.flavour is not target.flavour or source.series != target.series,
            f"it is of {source.flavour} {source.version}, not {target.version}",
        ),
        (
            source.page_size != target.page_size,
            f"its pages have {source.page_size} bytes, the server's {target.page_size}",
        ),
    )
    return next((text for is_so, text in objections if is_so), None)


def is_plain(name: TableName) -> bool:
    """Return whether the table's files have exactly the table's name.

    Some characters are encoded in file names (refman 8.4, "Mapping of Identifiers to File Names").
    """
    return bool(_PLAIN.fullmatch(name.schema) and _PLAIN.fullmatch(name.table or "_"))


HISTORY_OPTION = "--dump-history"
"""The option of mariadb-dump 10.11 and newer that dumps old versions of rows (MariaDB manual, "mariadb-dump")."""
_INSERTS_HISTORY_FROM = (10, 11)
"""The first MariaDB release that can load such a dump (MariaDB manual, "system_versioning_insert_history")."""
_NO_LOCKS = "--skip-add-locks"
"""The option that omits LOCK TABLES from the dump.

Under LOCK TABLES, MariaDB 11.8 refuses the rows of a table whose default uses a sequence (ER_TABLE_NOT_LOCKED,
observed).
"""
_BY_TRANSACTION = "it names transactions of the server it comes from, so a dump cannot hold it"


class DumpScope(StrEnum):
    """The part of a schema that is dumped: the whole schema, or only its tables and sequences."""

    EVERYTHING = "everything"
    TABLES = "tables"


@dataclass(frozen=True)
class DumpRuns:
    """The runs of the dump program in order, each with its arguments, and texts about data that is not dumped.

    The field `with_history` contains the tables whose old row versions are dumped too.
    """

    runs: tuple[tuple[str, ...], ...]
    with_history: frozenset[str]
    left_out: tuple[str, ...]


def objection_to_history(program: str, *, has_option: bool, target_version: str | None) -> str | None:
    """Return why old row versions cannot be dumped; None if they can be dumped.

    The argument `target_version` is the version of the server that loads the dump; None for a dump file.
    """
    if not has_option:
        return f"{program} does not have {HISTORY_OPTION}"
    if target_version is not None and release_of(target_version) < _INSERTS_HISTORY_FROM:
        return f"a server of version {target_version} cannot load it"
    return None


def dump_of_schema(schema: SchemaContent, scope: DumpScope, no_history: str | None) -> DumpRuns:
    """Return the runs that dump the schema.

    If histories cannot be dumped, `no_history` is the reason; otherwise it is None. The program refuses to dump the
    history of tables that are versioned by transaction, so a separate run dumps these tables. The separate run comes
    first, because views and routines may need these tables. It begins with the sequences, because column defaults may
    need them.
    """
    by_time = schema.versioned_by_time if no_history is None else ()
    everything = scope is DumpScope.EVERYTHING
    tables = (
        "--triggers" if everything else "--skip-triggers",
        *(() if everything and not schema.sequence_defaults else (_NO_LOCKS,)),
    )
    code = ("--routines", "--events") if everything else _ignored(schema.name, schema.views)
    runs: tuple[tuple[str, ...], ...]
    if by_time and schema.versioned_by_transaction:
        sequences = (table.name for table in schema.tables if table.is_sequence)
        first = (*sequences, *sorted(schema.versioned_by_transaction))
        runs = (
            (*tables, "--", schema.name, *first),
            (HISTORY_OPTION, *tables, *code, *_ignored(schema.name, first), "--", schema.name),
        )
    else:
        runs = ((*((HISTORY_OPTION,) if by_time else ()), *tables, *code, "--", schema.name),)
    lost = [note for table in schema.stored for note in _loss_notes(table, schema.versioned_by_transaction, no_history)]
    return DumpRuns(runs, frozenset(by_time), tuple(lost))


def dump_of_table(table: CatalogueTable, *, by_transaction: bool, no_history: str | None, rows_only: bool) -> DumpRuns:
    """Return the run that dumps one table, without its triggers and locks.

    With `rows_only`, the table definition is left out.
    """
    has_history = table.is_versioned and not by_transaction and no_history is None
    words = ["--skip-triggers", _NO_LOCKS, *((HISTORY_OPTION,) if has_history else ())]
    if rows_only:
        words += ["--no-create-info", "--skip-disable-keys"]
    lost = _loss_notes(table, frozenset({table.name}) if by_transaction else frozenset(), no_history)
    return DumpRuns(
        ((*words, "--", table.schema, table.name),), frozenset({table.name}) if has_history else frozenset(), lost
    )


def foreign_key_note(definition: str, key: str, name: TableName) -> str:
    """Return a note about an omitted foreign key, with the statement that adds it to the rescued table.

    The argument `definition` is the table's CREATE statement, in which the server puts each key on a separate line.
    """
    begin = f"CONSTRAINT {quoted(key)} FOREIGN KEY "
    for line in definition.split("\n"):
        if line.strip().startswith(begin):
            table = quoted(name.schema, name.table or "")
            return f"foreign key {key}; to add it: ALTER TABLE {table} ADD {line.strip().removesuffix(',')};"
    return f"foreign key {key}"


def loading_commands(
    original: TableName, client: str, path: str, charset: tuple[str, str] | None
) -> tuple[tuple[str, ...], str]:
    """Return the shell commands that load a dump file, and the reason for the schema in these commands.

    The argument `charset` contains the character set and the collation of a dumped schema.
    """
    if original.table is not None:
        sql, schema = "CREATE DATABASE rescued", "rescued"
        why = "the file makes the table under its old name: load it into a schema of its own, such as"
    else:
        options = "" if charset is None else " CHARACTER SET {} COLLATE {}".format(*charset)
        sql, schema = f"CREATE DATABASE {quoted(original.schema)}{options}", original.schema
        why = "the file makes the tables under their old names, in a schema that does not exist yet, such as"
    return (f"{client} -e {shlex.quote(sql)}", f"{client} {shlex.quote(schema)} < {shlex.quote(path)}"), why


def event_commands(instance: str, point: str, schema: str, events: Sequence[str]) -> tuple[str, ...]:
    """Return the shell commands that print statements for events that the dump lacks, from a clone of the point."""
    if not events:
        return ()
    shown = "; ".join(f"SHOW CREATE EVENT {quoted(schema, event)}" for event in events)
    return (
        f"zsnapdb clone create {instance} --name rescued --at {shlex.quote(point)}",
        f"zsnapdb clone connect rescued -e {shlex.quote(shown)}",
        "zsnapdb clone destroy rescued",
    )


def lost_digits(columns: Iterable[ColumnName]) -> tuple[str, ...]:
    """Return a note about FLOAT columns that lose digits in a dump, because the server prints only 6 digits.

    Observed with the dump programs of MySQL 9.7 and MariaDB 11.8: 1234567 is 1234570 in a dump.
    """
    names = ", ".join(f"{column.table}.{column.column}" for column in columns)
    if not names:
        return ()
    return (f"digits of the FLOAT columns {names}: a dump has 6; a single table into a server (--into) keeps all",)


def _ignored(schema: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"--ignore-table={schema}.{name}" for name in names)


def _loss_notes(table: CatalogueTable, by_transaction: frozenset[str], no_history: str | None) -> tuple[str, ...]:
    """Return notes about the rows that the dump of a table on a copy lacks."""
    if table.row_place is RowPlace.MEMORY:
        return (f"rows of {table.name}: they were in the memory of the server only",)
    if table.row_place is RowPlace.ELSEWHERE:
        return (f"rows of {table.name}: they are not in the server's own files, but where {table.engine} takes them",)
    if not table.is_versioned:
        return ()
    reason = _BY_TRANSACTION if table.name in by_transaction else no_history
    return () if reason is None else (f"history of {table.name}: {reason}",)
