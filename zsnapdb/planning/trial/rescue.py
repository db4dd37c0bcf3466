"""Where a rescued table goes, under which name, and by which transport. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import parse_qs, unquote, urlsplit

from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.base.model import Flavour
from zsnapdb.planning.sql_text import TableName, parse_table

_LONGEST_NAME = 64
"""Characters in the name of a table or schema (refman 8.4, "Identifier Length Limits")."""
_PLAIN = re.compile(r"^[A-Za-z0-9_]+$")


@dataclass(frozen=True)
class DumpFile:
    """A dump goes to this file, which is not there yet."""

    path: str


@dataclass(frozen=True)
class LiveServer:
    """Rows go to a running server. `schema` None: the one the table came from."""

    user: str
    host: str
    port: int
    socket: str | None
    schema: str | None


def parse_destination(text: str) -> DumpFile | LiveServer:
    """Return what `--into` names.

    UsageError if an address contains a password: everybody on the host can read a command line.
    """
    if not re.match(r"^(mysql|mariadb)://", text):
        if "://" in text:
            raise UsageError(
                f"cannot deliver into {text.split('://')[0]}://", hint="give a file, or mysql://user@host:port/schema"
            )
        return DumpFile(text)
    parts = urlsplit(text)
    if parts.password is not None:
        raise UsageError(
            "the address has a password in it, which everybody on this host can read",
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
    """Return the name on the live server: the chosen one, else the old name with the time of the data.

    `chosen` is `table`, `schema.table`, or for a schema its new name. `schema` is the one the destination names.
    """
    stamp = f"_{as_of:%Y%m%d_%H%M%S}"
    if original.table is None:
        return TableName(chosen or original.schema[: _LONGEST_NAME - len(stamp)] + stamp, None)
    if chosen is None:
        return TableName(schema or original.schema, original.table[: _LONGEST_NAME - len(stamp)] + stamp)
    return parse_table(chosen) if "." in chosen or "`" in chosen else TableName(schema or original.schema, chosen)


class Transport(StrEnum):
    """How rows get into a live server: as a tablespace, or dumped and loaded."""

    TABLESPACE = "tablespace"
    DUMP = "dump"


@dataclass(frozen=True)
class ServerKind:
    """What decides whether two servers understand each other's tablespaces."""

    flavour: Flavour
    version: str
    page_size: int
    has_binlog: bool

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True)
class TableKind:
    """What decides whether a table can move as a tablespace."""

    name: TableName
    engine: str
    options: str
    has_fulltext: bool
    is_file_per_table: bool
    is_versioned_by_transaction: bool = False


@dataclass(frozen=True)
class TransportChoice:
    """The transport and why."""

    transport: Transport
    reason: str


def choose_transport(
    requested: Transport | None, table: TableKind, source: ServerKind, target: ServerKind, *, is_local: bool
) -> TransportChoice:
    """Return how the table gets into the live server. `is_local`: its files are on this host and ours to write.

    By default a server with a binlog gets a dump. ALTER TABLE … IMPORT TABLESPACE would need the file on every replica
    and in every replay of the binlog (refman 8.4, "Importing InnoDB Tables"); rows of a dump are in the binlog.
    PreflightError if the requested transport is not possible.
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
    """Whether the files have the same names as the table.

    Other characters are encoded (refman 8.4, "Mapping of Identifiers to File Names").
    """
    return bool(_PLAIN.match(name.schema) and _PLAIN.match(name.table or "_"))
