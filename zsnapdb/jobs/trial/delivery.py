"""Gets a table or schema out of a throwaway server: into a dump file, or into a live server under another name."""

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
from zsnapdb.model import Flavour
from zsnapdb.mysql import programs
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.trial.rescue import (
    ServerKind,
    TableKind,
    TableName,
    Transport,
    TransportChoice,
    choose_transport,
    is_plain,
    quoted,
)

_AWAY = "zsnapdb_rescue"
"""Schema of the throwaway server a table is moved to, so that it can have its new name."""
_END_OF_DUMP = b"-- Dump completed"


@dataclass(frozen=True)
class Tools:
    """The dump program and the client, of the server's family."""

    dump: Path
    client: Path


@dataclass(frozen=True)
class Delivered:
    """What has arrived: where, by which way and why, how many rows of each table (None: not counted), what was left out."""

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
    gtids = ["--set-gtid-purged=OFF"] if isolated.copy.flavour is Flavour.MYSQL else []
    # Nothing in what comes out may drop a table: it may be loaded where one of that name lives.
    common = ["--skip-add-drop-table", "--single-transaction", "--quick", "--hex-blob", "--no-tablespaces"]
    return [str(tools.dump), f"--defaults-file={_own_client(isolated)}", *common, *gtids, *words]


def check_there(session: Session, wanted: TableName) -> None:
    """Raise PreflightError unless the schema, and the table in it, exist at that point."""
    if not session.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (wanted.schema,)):
        names = ", ".join(
            str(row[0])
            for row in session.query("SELECT schema_name FROM information_schema.schemata ORDER BY schema_name")
        )
        raise PreflightError(f"there was no schema {wanted.schema} at that point", hint=f"there were {names}")
    if wanted.table is None:
        return
    if not session.query(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s AND table_type = 'BASE"
        " TABLE'",
        (wanted.schema, wanted.table),
    ):
        rows = session.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name LIMIT 30",
            (wanted.schema,),
        )
        raise PreflightError(
            f"there was no table {wanted} at that point",
            hint=f"{wanted.schema} held {', '.join(str(row[0]) for row in rows) or 'no table'}; try another --to",
        )


def to_file(isolated: Isolated, tools: Tools, wanted: TableName, path: Path, timeout: float) -> Delivered:
    """Dump into a new file, readable by its owner alone.

    It has its name only when it is whole; one that is there is never overwritten.
    """
    partial = path.with_name(f".{path.name}.writing")
    what = (
        ["--skip-triggers", wanted.schema, wanted.table]
        if wanted.table is not None
        else ["--triggers", "--routines", "--events", wanted.schema]
    )
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "r+b") as file:
            programs.run(_dump_argv(isolated, tools, what), stdout=file, timeout=timeout)
            file.seek(max(0, os.fstat(descriptor).st_size - 200))
            if _END_OF_DUMP not in file.read():
                raise ConsistencyError(
                    f"the dump in {partial} does not end as a whole one does", hint="it was removed; is the disk full?"
                )
            os.fsync(descriptor)
        try:
            os.link(partial, path)
        except FileExistsError:
            raise ExistsError(
                f"{path} has come to be meanwhile", hint="name another file; nothing is overwritten"
            ) from None
    finally:
        partial.unlink(missing_ok=True)
    left_out = (
        () if wanted.table is None else ("triggers: they would fire, or be in the way, where the dump is loaded",)
    )
    return Delivered(str(path), TransportChoice(Transport.DUMP, "into a file"), (), left_out)


@dataclass(frozen=True)
class Target:
    """The live server: how it is reached, an open session on it, what it is. `timeout` in seconds."""

    address: Address
    password: SecretStr
    session: Session
    kind: ServerKind
    datadir: Path
    timeout: float


def check_free(target: Target, name: TableName) -> None:
    """Raise unless the name is free on the live server (ExistsError) and, for a table, its schema is there (PreflightError)."""
    has_schema = bool(
        target.session.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (name.schema,))
    )
    if name.table is None:
        if has_schema:
            raise ExistsError(
                f"{target.address} has a schema {name.schema}", hint="name another with --as; nothing is overwritten"
            )
        return
    if not has_schema:
        raise PreflightError(
            f"{target.address} has no schema {name.schema}", hint="make it, or name another: --as schema.table"
        )
    if target.session.query(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s", (name.schema, name.table)
    ):
        raise ExistsError(f"{target.address} has a table {name}", hint="name another with --as; nothing is overwritten")


def table_to_server(
    isolated: Isolated,
    tools: Tools,
    wanted: TableName,
    name: TableName,
    target: Target,
    asked: Transport | None,
    here: ServerKind,
) -> Delivered:
    """Put the table into the live server under its new name, which was free. On an error nothing of it stays there.

    Foreign keys and triggers are left out: they would act on, or be acted on by, what lives there.
    """
    assert name.table is not None
    with isolated.session() as session:
        away, left_out = _move_away(session, wanted, name.table)
        kind = _kind_of(session, away)
        definition = str(session.query(f"SHOW CREATE TABLE {quoted(away.schema, name.table)}")[0][1])
        file = target.datadir / name.schema / f"{name.table}.ibd"
        if asked is Transport.TABLESPACE:
            # Then the binlog must not speak of it: who reads it would not find the file.
            target.session.query("SET SESSION sql_log_bin = 0")
            left_out.append(
                "the binlog: replicas of the server, and a recovery from its binlogs, do not know the table"
            )
        target.session.query("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
        target.session.query(f"USE {quoted(name.schema)}")
        target.session.query(definition)
        with undone_on_error(
            lambda: _drop(
                target, f"TABLE {quoted(name.schema, name.table or '')}", unlogged=asked is Transport.TABLESPACE
            )
        ):
            is_local = is_plain(name) and file.is_file() and os.access(file.parent, os.W_OK)
            choice = choose_transport(asked, kind, here, target.kind, is_local=is_local)
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


def _move_away(session: Session, wanted: TableName, new: str) -> tuple[TableName, list[str]]:
    """Give the table its new name, in a schema of its own, without triggers and foreign keys.

    On the throwaway server, so it is free to.
    """
    left_out = []
    session.query("SET SESSION foreign_key_checks = 0")
    triggers = session.query(
        "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table"
        " = %s",
        (wanted.schema, wanted.table),
    )
    for (trigger,) in triggers:
        session.query(f"DROP TRIGGER {quoted(wanted.schema, str(trigger))}")
        left_out.append(f"trigger {trigger}")
    session.query(f"CREATE DATABASE {quoted(_AWAY)}")
    session.query(f"RENAME TABLE {quoted(wanted.schema, wanted.table or '')} TO {quoted(_AWAY, new)}")
    keys = session.query(
        "SELECT constraint_name FROM information_schema.table_constraints WHERE table_schema = %s AND table_name = %s"
        " AND constraint_type = 'FOREIGN KEY'",
        (_AWAY, new),
    )
    for (key,) in keys:
        session.query(f"ALTER TABLE {quoted(_AWAY, new)} DROP FOREIGN KEY {quoted(str(key))}")
        left_out.append(f"foreign key {key}")
    return TableName(_AWAY, new), left_out


def _kind_of(session: Session, name: TableName) -> TableKind:
    engine, options = session.query(
        "SELECT engine, create_options FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (name.schema, name.table),
    )[0]
    fulltext = session.query(
        "SELECT 1 FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s AND index_type ="
        " 'FULLTEXT' LIMIT 1",
        (name.schema, name.table),
    )
    has_file = (Path(str(session.value("SELECT @@datadir"))) / name.schema / f"{name.table}.ibd").is_file()
    return TableKind(name, str(engine), str(options or ""), bool(fulltext), has_file)


def _import(session: Session, away: TableName, isolated: Isolated, target: Target, name: TableName, file: Path) -> None:
    """Move the tablespace: written out and locked on the throwaway server, copied, imported (refman 8.4, "Importing InnoDB Tables")."""
    table = quoted(name.schema, name.table or "")
    target.session.query(f"ALTER TABLE {table} DISCARD TABLESPACE")
    source = isolated.copy.datadir / away.schema / f"{away.table}.ibd"
    description = file.with_suffix(".cfg")
    try:
        session.query(f"FLUSH TABLES {quoted(away.schema, away.table or '')} FOR EXPORT")
        owner = file.parent.stat()
        for here, there in ((source, file), (source.with_suffix(".cfg"), description)):
            _copy_new(here, there, owner.st_uid, owner.st_gid)
        session.query("UNLOCK TABLES")
        target.session.query(f"ALTER TABLE {table} IMPORT TABLESPACE")
    except BaseException:
        # A discarded table whose file is there again cannot be dropped on every server.
        file.unlink(missing_ok=True)
        raise
    finally:
        description.unlink(missing_ok=True)


def _copy_new(source: Path, target: Path, uid: int, gid: int) -> None:
    """Copy a file to a name that is free, for the server's account, and have it on disk."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with open(descriptor, "wb") as new, source.open("rb") as old:
        os.fchown(descriptor, uid, gid)
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(descriptor)


def _load(isolated: Isolated, tools: Tools, words: Sequence[str], target: Target, schema: str) -> None:
    """Dump from the throwaway server into the live one."""
    login = client_file(isolated.copy.folder / "load.cnf", target.address, target.password, isolated.copy.settings.user)
    client = [str(tools.client), f"--defaults-file={login}", "--default-character-set=utf8mb4", schema]
    with _gone_afterwards(login):
        programs.pipe([*_dump_argv(isolated, tools, words)], client, timeout=target.timeout)


@contextlib.contextmanager
def _gone_afterwards(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _drop(target: Target, what: str, *, unlogged: bool) -> None:
    """Drop what this run created on the live server a moment ago.

    With a session of its own, as the other may be lost.
    """
    with Session.open(target.address, target.password, read_timeout=target.timeout) as session:
        if unlogged:
            session.query("SET SESSION sql_log_bin = 0")
        session.query(f"DROP {what}")


def _count(session: Session, name: TableName) -> int:
    table = quoted(name.schema, name.table or "")
    return int(session.value(f"SELECT COUNT(*) FROM {table}"))  # noqa: S608 - names, in backticks


def _compare(source: Session, there: TableName, target: Target, here: TableName) -> int:
    """Return how many rows the table has. ConsistencyError unless both servers count the same."""
    wanted, found = _count(source, there), _count(target.session, here)
    if found != wanted:
        raise ConsistencyError(
            f"{here} has {found} rows on the live server, {wanted} where it came from",
            hint="it was dropped again; report this",
        )
    return found


def schema_to_server(isolated: Isolated, tools: Tools, wanted: TableName, name: TableName, target: Target) -> Delivered:
    """Put the schema's tables into the live server under the new name, which was free.

    On an error nothing of it stays there.

    Views, triggers, routines and events are left out: they name the old schema.
    """
    with isolated.session() as session:
        rows = session.query(
            "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name",
            (wanted.schema,),
        )
        tables = [str(table) for table, kind in rows if kind == "BASE TABLE"]
        others = [str(table) for table, kind in rows if kind != "BASE TABLE"]
        charset, collation = session.query(
            "SELECT default_character_set_name, default_collation_name FROM information_schema.schemata WHERE"
            " schema_name = %s",
            (wanted.schema,),
        )[0]
        target.session.query(f"CREATE DATABASE {quoted(name.schema)} CHARACTER SET {charset} COLLATE {collation}")
        with undone_on_error(lambda: _drop(target, f"DATABASE {quoted(name.schema)}", unlogged=False)):
            words = [
                "--skip-triggers",
                "--skip-add-locks",
                *(f"--ignore-table={wanted.schema}.{view}" for view in others),
                wanted.schema,
            ]
            _load(isolated, tools, words, target, name.schema)
            counts = tuple(
                (table, _compare(session, TableName(wanted.schema, table), target, TableName(name.schema, table)))
                for table in tables
            )
    left_out = [f"view {view}" for view in others] + ["triggers, routines and events: they name the old schema"]
    return Delivered(
        f"{name} on {target.address}", TransportChoice(Transport.DUMP, "a schema goes by dump"), counts, tuple(left_out)
    )
