"""Delivers a table or schema from an ephemeral server: into a dump file, or into a live server under a new name."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.errors import ConsistencyError, ExistsError, PreflightError
from zsnapdb.jobs.server_copy.client_file import client_file
from zsnapdb.jobs.trial.server_checks import Isolated
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.mysql import programs, schema_catalogue, tables, transfer
from zsnapdb.mysql.session import Address, Session
from zsnapdb.mysql.variables import stop_logging
from zsnapdb.planning.family import family
from zsnapdb.planning.schema_content import TableType
from zsnapdb.planning.trial.rescue import (
    ServerKind,
    TableName,
    Transport,
    TransportChoice,
    choose_transport,
    is_plain,
)

_AWAY = "zsnapdb_rescue"
"""The schema of the ephemeral server to which a table is moved, so that it can have its new name there."""
_LISTED = 30
"""How many of the existing tables a hint names."""
_END_OF_DUMP = b"-- Dump completed"


@dataclass(frozen=True)
class Tools:
    """The dump program and the client of the server's family."""

    dump: Path
    client: Path


@dataclass(frozen=True)
class Delivered:
    """What was delivered: where, by which transport and why, the rows of each counted table, and what was left out."""

    where: str
    choice: TransportChoice
    rows: tuple[tuple[str, int], ...]
    left_out: tuple[str, ...]


def _own_client(isolated: Isolated) -> Path:
    copy = isolated.copy
    return client_file(
        copy.folder / "dump.cnf",
        Address(user="root", socket=Path(isolated.identity.socket)),
        SecretStr(""),
        copy.settings.user,
    )


def _dump_argv(isolated: Isolated, tools: Tools, words: Sequence[str]) -> list[str]:
    own = family(isolated.copy.flavour).dump_options
    # A dump must not drop a table: it may be loaded into a server that has a table of that name.
    common = ["--skip-add-drop-table", "--single-transaction", "--quick", "--hex-blob", "--no-tablespaces"]
    return [str(tools.dump), f"--defaults-file={_own_client(isolated)}", *common, *own, *words]


def check_there(session: Session, original: TableName) -> None:
    """Raise PreflightError unless the schema, and the table in it, exist at the restored point."""
    if not schema_catalogue.has_schema(session, original.schema):
        listing = ", ".join(schema_catalogue.schemas(session))
        raise PreflightError(
            f"there was no schema {original.schema} at that point", hint=f"the schemas were: {listing}"
        )
    if original.table is None:
        return
    found = schema_catalogue.find_table(session, original.schema, original.table)
    if found is None or found.type is TableType.VIEW:
        there = ", ".join(schema_catalogue.names(session, original.schema, _LISTED))
        raise PreflightError(
            f"there was no table {original} at that point",
            hint=f"{original.schema} contained {there or 'no table'}; try another --to",
        )


def to_file(isolated: Isolated, tools: Tools, original: TableName, path: Path, timeout: float) -> Delivered:
    """Dump into a new file, readable only by its owner.

    The file gets its name only when it is complete. An existing file is never overwritten.
    """
    partial = path.with_name(f".{path.name}.writing")
    what = (
        ["--skip-triggers", original.schema, original.table]
        if original.table is not None
        else ["--triggers", "--routines", "--events", original.schema]
    )
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "r+b") as file:
            programs.run(_dump_argv(isolated, tools, what), stdout=file, timeout=timeout)
            file.seek(max(0, os.fstat(descriptor).st_size - 200))
            if _END_OF_DUMP not in file.read():
                raise ConsistencyError(
                    f"the dump in {partial} is not complete", hint="it was removed; check whether the disk is full"
                )
            os.fsync(descriptor)
        try:
            os.link(partial, path)
        except FileExistsError:
            raise ExistsError(
                f"{path} was created in the meantime", hint="name another file; nothing is overwritten"
            ) from None
    finally:
        partial.unlink(missing_ok=True)
    left_out = () if original.table is None else ("triggers: they would act on the server that loads the dump",)
    return Delivered(str(path), TransportChoice(Transport.DUMP, "into a file"), (), left_out)


@dataclass(frozen=True)
class Target:
    """The live server: its address and password, an open session, and its properties. `timeout` is in seconds."""

    address: Address
    password: SecretStr
    session: Session
    kind: ServerKind
    datadir: Path
    timeout: float


def check_free(target: Target, name: TableName) -> None:
    """Raise ExistsError if the name is taken on the live server, PreflightError if a table's schema does not exist."""
    has_schema = schema_catalogue.has_schema(target.session, name.schema)
    if name.table is None:
        if has_schema:
            raise ExistsError(
                f"{target.address} has a schema {name.schema}",
                hint="name another schema with --as; nothing is overwritten",
            )
        return
    if not has_schema:
        raise PreflightError(
            f"{target.address} has no schema {name.schema}",
            hint="create the schema, or name another: --as schema.table",
        )
    if schema_catalogue.find_table(target.session, name.schema, name.table) is not None:
        raise ExistsError(
            f"{target.address} has a table {name}", hint="name another table with --as; nothing is overwritten"
        )


def table_to_server(
    isolated: Isolated,
    tools: Tools,
    original: TableName,
    name: TableName,
    target: Target,
    requested: Transport | None,
    here: ServerKind,
) -> Delivered:
    """Put the table into the live server under its new name, which was free. On an error nothing of it stays there.

    Foreign keys and triggers are left out, because they would connect the table with other tables of the live server.
    """
    assert name.table is not None
    with isolated.session() as session:
        # On the ephemeral server the table gets its new name, in a separate schema.
        away = TableName(_AWAY, name.table)
        left_out = transfer.move_away(session, original.schema, original.table or "", away)
        kind = transfer.kind_of(session, away)
        definition = transfer.definition(session, away)
        file = target.datadir / name.schema / f"{name.table}.ibd"
        if requested is Transport.TABLESPACE:
            # Then the binlog must not name the table: readers of the binlog would not have the file.
            stop_logging(target.session)
            left_out.append(
                "the binlog: replicas of the server, and a recovery from its binlogs, will not have the table"
            )
        transfer.create_table(target.session, name.schema, definition)
        with undone_on_error(lambda: _drop(target, name, unlogged=requested is Transport.TABLESPACE)):
            is_local = is_plain(name) and file.is_file() and os.access(file.parent, os.W_OK)
            choice = choose_transport(requested, kind, here, target.kind, is_local=is_local)
            if choice.transport is Transport.TABLESPACE:
                _import(session, away, isolated, target, name, file)
            else:
                words = [
                    "--no-create-info",
                    "--skip-triggers",
                    "--skip-add-locks",
                    "--skip-disable-keys",
                    away.schema,
                    name.table,
                ]
                _load(isolated, tools, words, target, name.schema)
            rows = _compare(session, away, target, name)
    return Delivered(f"{name} on {target.address}", choice, ((str(name), rows),), tuple(left_out))


def _import(session: Session, away: TableName, isolated: Isolated, target: Target, name: TableName, file: Path) -> None:
    """Move the tablespace: export it on the ephemeral server, copy it, import it on the live server.

    See refman 8.4, "Importing InnoDB Tables".
    """
    transfer.discard_tablespace(target.session, name)
    source = isolated.copy.datadir / away.schema / f"{away.table}.ibd"
    description = file.with_suffix(".cfg")
    try:
        with transfer.exported(session, away):
            owner = file.parent.stat()
            for here, there in ((source, file), (source.with_suffix(".cfg"), description)):
                _copy_new(here, there, owner.st_uid, owner.st_gid)
        transfer.import_tablespace(target.session, name)
    except BaseException:
        # Not every server can drop a discarded table whose file exists again.
        file.unlink(missing_ok=True)
        raise
    finally:
        description.unlink(missing_ok=True)


def _copy_new(source: Path, target: Path, uid: int, gid: int) -> None:
    """Copy a file durably to a name that is free; the server's account becomes its owner."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with open(descriptor, "wb") as new, source.open("rb") as old:
        os.fchown(descriptor, uid, gid)
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(descriptor)


def _load(isolated: Isolated, tools: Tools, words: Sequence[str], target: Target, schema: str) -> None:
    """Dump from the ephemeral server into the live server."""
    login = client_file(isolated.copy.folder / "load.cnf", target.address, target.password, isolated.copy.settings.user)
    client = [str(tools.client), f"--defaults-file={login}", "--default-character-set=utf8mb4", schema]
    with _removed_afterwards(login):
        programs.pipe([*_dump_argv(isolated, tools, words)], client, timeout=target.timeout)


@contextlib.contextmanager
def _removed_afterwards(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _drop(target: Target, name: TableName, *, unlogged: bool) -> None:
    """Drop what this run has created on the live server.

    This uses a new session, because the other session may be lost.
    """
    with Session.open(target.address, target.password, read_timeout=target.timeout) as session:
        transfer.drop(session, name, unlogged=unlogged)


def _count(session: Session, name: TableName) -> int:
    return tables.count(session, name.schema, name.table or "")


def _compare(source: Session, there: TableName, target: Target, here: TableName) -> int:
    """Return how many rows the table has. ConsistencyError unless both servers count the same."""
    expected, delivered = _count(source, there), _count(target.session, here)
    if delivered != expected:
        raise ConsistencyError(
            f"{here} has {delivered} rows on the live server, but the original table has {expected}",
            hint="it was dropped again; report this",
        )
    return delivered


def schema_to_server(
    isolated: Isolated, tools: Tools, original: TableName, name: TableName, target: Target
) -> Delivered:
    """Put the schema's tables into the live server under the new name, which was free.

    On an error nothing of it stays there.

    Views, triggers, routines and events are left out, because they name the old schema.
    """
    with isolated.session() as session:
        schema = schema_catalogue.content(session, original.schema)
        transfer.create_schema(target.session, name.schema, schema)
        with undone_on_error(lambda: _drop(target, name, unlogged=False)):
            words = [
                "--skip-triggers",
                "--skip-add-locks",
                *(f"--ignore-table={original.schema}.{view}" for view in schema.views),
                original.schema,
            ]
            _load(isolated, tools, words, target, name.schema)
            counts = tuple(
                (
                    table.name,
                    _compare(
                        session, TableName(original.schema, table.name), target, TableName(name.schema, table.name)
                    ),
                )
                for table in schema.stored
            )
    left_out = [f"view {view}" for view in schema.views] + ["triggers, routines and events: they name the old schema"]
    return Delivered(
        f"{name} on {target.address}", TransportChoice(Transport.DUMP, "a schema goes by dump"), counts, tuple(left_out)
    )
