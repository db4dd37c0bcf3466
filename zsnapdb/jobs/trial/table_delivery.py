"""Delivers a table or schema from an ephemeral server to a dump file, or to a live server under a new name."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.errors import ConsistencyError, ExistsError, PreflightError
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.host import fresh_password
from zsnapdb.jobs.host.server_copy import client_file
from zsnapdb.jobs.trial.server_checks import IsolatedServer
from zsnapdb.mysql import accounts
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.schema import schema_catalogue, table_transfer, tables
from zsnapdb.mysql.session import Address, Session, global_statement
from zsnapdb.mysql.variables import global_variables, stop_logging
from zsnapdb.planning.schema_content import CatalogueTable, RowPlace, SchemaContent, TableType
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import IDENTITY, TableName, only_on_server
from zsnapdb.planning.trial.rescue import (
    HISTORY_OPTION,
    DumpRuns,
    DumpScope,
    ServerKind,
    Transport,
    TransportChoice,
    choose_transport,
    dump_of_schema,
    dump_of_table,
    is_plain,
    lost_digits,
    objection_to_history,
)

_UNTIMED = "net_write_timeout = 3600 /*M!100500 , SESSION max_statement_time = 0*/"
_LOADING = ("sql_safe_updates = 0", "completion_type = 0", "autocommit = 1", "net_read_timeout = 3600", _UNTIMED)
"""Settings for the session that loads a dump, because the dump itself does not set them.

With completion_type = RELEASE, the dump's COMMIT would end the session.
"""
_END_OF_DUMP = b"-- Dump completed"


@dataclass(frozen=True)
class DumpPrograms:
    """The dump program and the client of the server's family."""

    dump: Path
    client: Path

    def objection_to_history(self, target_version: str | None) -> str | None:
        """Return why old row versions cannot be dumped for this server version; None if they can be dumped.

        For a dump to a file, the version is None.
        """
        has_option = programs.has_option(self.dump, HISTORY_OPTION)
        return objection_to_history(self.dump.name, has_option=has_option, target_version=target_version)


@dataclass(frozen=True)
class DumpLogin:
    """The login of the client program on a live server. `identity` contains the variables that identify the server."""

    address: Address
    password: SecretStr
    identity: Mapping[str, str]


def _login(isolated: IsolatedServer) -> contextlib.AbstractContextManager[Path]:
    """Yield an option file for the dump program. It exists during the `with` block.

    The ephemeral server accepts every account, because it runs without access control (`Access.PRIVATE_SOCKET`). The
    option file has a random account name and password, so that any other server refuses the login.

    Raises:
        ConsistencyError: a different server answers on the socket.
    """
    with isolated.session() as session:
        session.query(global_statement())
        datadir = Path(global_variables(session, ("datadir",))["datadir"])
    if datadir != isolated.copy.datadir:
        raise ConsistencyError(
            f"the server at {isolated.identity.socket} has the data directory {datadir}, not {isolated.copy.datadir}",
            hint="nothing was dumped; run the command again",
        )
    account = Address(user=f"zsnapdb_{secrets.token_hex(8)}", socket=Path(isolated.identity.socket))
    return client_file(account, fresh_password())


def _argv(isolated: IsolatedServer, tools: DumpPrograms, login: Path, words: Sequence[str]) -> list[str]:
    # A dump must not drop a table, because the server that loads it may have a table with that name.
    common = ["--skip-add-drop-table", "--single-transaction", "--quick", "--hex-blob", "--no-tablespaces"]
    return [str(tools.dump), f"--defaults-file={login}", *common, *family(isolated.copy.flavour).dump_options, *words]


def write_file(isolated: IsolatedServer, tools: DumpPrograms, dump: DumpRuns, path: Path, timeout: float) -> None:
    """Dump into a new file that only its owner can read.

    The file gets its final name only when it is complete. An existing file is never overwritten.
    """
    partial = path.with_name(f".{path.name}.writing")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "r+b", buffering=0) as file, _login(isolated) as login:
            for words in dump.runs:
                programs.run(_argv(isolated, tools, login, words), stdout=file, timeout=timeout)
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


def load(
    isolated: IsolatedServer, tools: DumpPrograms, dump: DumpRuns, login: DumpLogin, schema: str, timeout: float
) -> None:
    """Dump from the ephemeral server, and load the dump into the schema of the live server.

    `timeout` is the time limit of each program in seconds.
    """
    with (
        client_file(login.address, login.password, only_on_server(login.identity, *_LOADING)) as target,
        _login(isolated) as source,
    ):
        # In binary mode, a client that reads from a pipe accepts only one of its own commands, `delimiter` (refman 8.4,
        # "mysql Client Options"; MariaDB, "mariadb Command-Line Client"). So the text of a dump cannot start a program
        # on this host.
        options = ("--default-character-set=utf8mb4", "--binary-mode", "--local-infile=0")
        client = [str(tools.client), f"--defaults-file={target}", *options, "--", schema]
        for words in dump.runs:
            programs.pipe(_argv(isolated, tools, source, words), client, timeout=timeout)


_AWAY = "zsnapdb_rescue"
"""The schema on the ephemeral server to which a table is moved, so that the table can get its new name."""
_LISTED = 30
"""The maximum number of existing tables that a hint lists."""


@dataclass(frozen=True)
class Delivered:
    """The result of a delivery.

    It contains the destination, the transport and the reason for its choice, the row count of each counted table, and
    the omitted parts. For a dump file of a schema, it also contains the schema's character set and collation, and the
    omitted events.
    """

    where: str
    choice: TransportChoice
    rows: tuple[tuple[str, int], ...]
    left_out: tuple[str, ...]
    charset: tuple[str, str] | None = None
    hidden_events: tuple[str, ...] = ()


def check_there(session: Session, original: TableName) -> None:
    """Raise PreflightError if the schema, or a requested table, does not exist at the restored point."""
    if not schema_catalogue.has_schema(session, original.schema):
        listing = ", ".join(schema_catalogue.schemas(session))
        raise PreflightError(
            f"there was no schema {original.schema} at that point", hint=f"the schemas were: {listing}"
        )
    if original.table is None:
        return
    table = schema_catalogue.find_table(session, original.schema, original.table)
    if table is not None and table.type is TableType.VIEW:
        raise PreflightError(
            f"{original} was a view at that point, which has no rows of its own",
            hint=f"rescue its schema into a file: --schema {original.schema}",
        )
    if table is not None and table.row_place is RowPlace.OTHER_TABLES:
        raise PreflightError(
            f"{original} is a {table.engine} table, whose rows are those of other tables",
            hint=f"rescue those tables, or the schema: --schema {original.schema}",
        )
    if table is None:
        there = ", ".join(schema_catalogue.names(session, original.schema, _LISTED))
        raise PreflightError(
            f"there was no table {original} at that point",
            hint=f"{original.schema} contained {there or 'no table'}; try another --to",
        )


def to_file(
    isolated: IsolatedServer, tools: DumpPrograms, original: TableName, path: Path, timeout: float
) -> Delivered:
    """Dump a complete schema, or a table without its triggers, into a new file, as `write_file` does."""
    notes: tuple[str, ...] = ()
    charset, events = None, tuple[str, ...]()
    with isolated.session() as session:
        if original.table is None:
            content = schema_catalogue.content(session, original.schema)
            dump = dump_of_schema(content, DumpScope.EVERYTHING, _no_history(content.tables, tools, None))
            charset, events = (content.charset, content.collation), content.hidden_events
            notes = tuple(f"event {event}: a server without accounts does not dump it" for event in events)
        else:
            table = _delivered_table(session, original)
            dump = dump_of_table(
                table,
                by_transaction=table.is_versioned
                and table.name in schema_catalogue.versioned_by_transaction(session, table.schema),
                no_history=_no_history((table,), tools, None),
                rows_only=False,
            )
            triggers = schema_catalogue.triggers_of(session, original.schema, table.name)
            notes = tuple(f"trigger {name}: it would act on the server that loads the dump" for name in triggers)
        singles = schema_catalogue.single_columns(session, original.schema)
        digits = lost_digits(each for each in singles if original.table in (None, each.table))
    write_file(isolated, tools, dump, path, timeout)
    choice = TransportChoice(Transport.DUMP, "into a file")
    return Delivered(str(path), choice, (), (*notes, *dump.left_out, *digits), charset, events)


def _delivered_table(session: Session, name: TableName) -> CatalogueTable:
    table = schema_catalogue.find_table(session, name.schema, name.table or "")
    assert table is not None, name
    return table


def _no_history(chosen: Iterable[CatalogueTable], tools: DumpPrograms, target: Target | None) -> str | None:
    """Return why old row versions cannot be dumped; None if they can be dumped, or if no table has old row versions."""
    if not any(table.is_versioned for table in chosen):
        return None
    return tools.objection_to_history(None if target is None else target.kind.version)


@dataclass(frozen=True)
class Target:
    """The live server, with its address, the password, an open session and its properties. `timeout` is in seconds."""

    address: Address
    password: SecretStr
    session: Session
    kind: ServerKind
    datadir: Path
    timeout: float

    @property
    def login(self) -> DumpLogin:
        """The login of the client program on this server."""
        return DumpLogin(self.address, self.password, global_variables(self.session, IDENTITY))


def check_rights(target: Target, name: TableName, requested: Transport | None) -> None:
    """Raise PreflightError if the account may not create, fill and drop the delivered objects.

    Privileges from roles may be invisible to this check.
    """
    needed = {"CREATE", "DROP", "INSERT", "SELECT"} | ({"ALTER"} if requested is Transport.TABLESPACE else set())
    lacking = accounts.lacking_on(target.session, name.schema, needed)
    if not lacking:
        return
    account = accounts.current_account(target.session)
    words = ", ".join(lacking)
    raise PreflightError(
        f"{account} may not put {name} into {target.address}: it lacks {words} on {name.schema}",
        hint=f"name an account that has the rights with --user, or grant them: GRANT {words} ON {name.schema}.* TO …",
    )


def check_free(target: Target, name: TableName) -> None:
    """Raise ExistsError if the name exists on the live server, and PreflightError if the table's schema does not."""
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
    isolated: IsolatedServer,
    tools: DumpPrograms,
    original: TableName,
    name: TableName,
    target: Target,
    requested: Transport | None,
    here: ServerKind,
) -> Delivered:
    """Copy the table to the live server under the new name, which must be unused there.

    If an error occurs, no part of the table remains on the live server. Foreign keys and triggers are omitted, because
    they would connect the table with other tables of the live server.
    """
    assert name.table is not None
    with isolated.session() as session:
        # On the ephemeral server, the table gets its new name in a separate schema.
        moved = TableName(_AWAY, name.table)
        left_out = table_transfer.move_away(session, original.schema, original.table or "", moved, name)
        table = _delivered_table(session, moved)
        if table.is_sequence:
            return _sequence_to_server(session, table, name, target, requested, tuple(left_out))
        definition = table_transfer.definition(session, moved)
        file = target.datadir / name.schema / f"{name.table}.ibd"
        if requested is Transport.TABLESPACE:
            # Do not write this statement to the binlog, because replicas do not have the file of the table.
            stop_logging(target.session)
            left_out.append(
                "the binlog: replicas of the server, and a recovery from its binlogs, will not have the table"
            )
        table_transfer.create_table(target.session, name.schema, definition)
        with undone_on_error(lambda: _drop(target, name, unlogged=requested is Transport.TABLESPACE)):
            kind = table_transfer.kind_of(session, moved)
            is_local = is_plain(name) and file.is_file() and os.access(file.parent, os.W_OK)
            choice = choose_transport(requested, kind, here, target.kind, is_local=is_local)
            if choice.transport is Transport.TABLESPACE:
                _import(session, moved, isolated, target, name, file)
                with_history = frozenset({table.name}) if table.is_versioned else frozenset()
            else:
                no_history, by_transaction = _no_history((table,), tools, target), kind.is_versioned_by_transaction
                dump = dump_of_table(table, by_transaction=by_transaction, no_history=no_history, rows_only=True)
                left_out += lost_digits(table_transfer.widen_float_columns(session, moved))
                load(isolated, tools, dump, target.login, name.schema, target.timeout)
                with_history = dump.with_history
                left_out += dump.left_out
            rows = _compare(session, table, target, name, with_history)
    return Delivered(f"{name} on {target.address}", choice, _row_counts(name, rows), tuple(left_out))


def _sequence_to_server(
    session: Session,
    sequence: CatalogueTable,
    name: TableName,
    target: Target,
    requested: Transport | None,
    left_out: tuple[str, ...],
) -> Delivered:
    """Create a sequence on the live server. It continues with the value of the rescued sequence.

    Raises:
        PreflightError: the transport is a tablespace.
    """
    if requested is Transport.TABLESPACE:
        raise PreflightError(f"{name} is a sequence, which cannot move as a tablespace", hint="leave --transport out")
    moved = TableName(sequence.schema, sequence.name)
    table_transfer.create_table(target.session, name.schema, table_transfer.definition(session, moved))
    with undone_on_error(lambda: _drop(target, name, unlogged=False)):
        table_transfer.set_next_value(target.session, name, table_transfer.sequence_state(session, moved)[0])
        rows = _compare(session, sequence, target, name)
    choice = TransportChoice(Transport.DUMP, "a sequence goes by its definition and its next value")
    return Delivered(f"{name} on {target.address}", choice, _row_counts(name, rows), left_out)


def _import(
    session: Session, moved: TableName, isolated: IsolatedServer, target: Target, name: TableName, file: Path
) -> None:
    """Move the tablespace: export it from the ephemeral server, copy its file, and import it into the live server.

    See refman 8.4, "Importing InnoDB Tables".
    """
    table_transfer.discard_tablespace(target.session, name)
    source = isolated.copy.datadir / moved.schema / f"{moved.table}.ibd"
    description = file.with_suffix(".cfg")
    try:
        with table_transfer.exported(session, moved):
            owner = file.parent.stat()
            for here, there in ((source, file), (source.with_suffix(".cfg"), description)):
                _copy_new(here, there, owner.st_uid, owner.st_gid)
        table_transfer.import_tablespace(target.session, name)
    except BaseException:
        # Remove the file first: some servers cannot drop a table if the file of its discarded tablespace exists.
        safe_open.remove(file)
        raise
    finally:
        safe_open.remove(description)


def _copy_new(source: Path, target: Path, uid: int, gid: int) -> None:
    with safe_open.create(target) as new, safe_open.open_to_read(source) as old:
        os.fchown(new.fileno(), uid, gid)
        os.fchmod(new.fileno(), 0o640)
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())


def _drop(target: Target, name: TableName, *, unlogged: bool) -> None:
    """Drop all objects that this run created on the live server.

    This uses a new session, because the earlier session may be lost.
    """
    with Session.open(target.address, target.password, read_timeout=target.timeout) as session:
        table_transfer.drop(session, name, unlogged=unlogged)


def _row_counts(name: TableName, rows: int | None) -> tuple[tuple[str, int], ...]:
    return () if rows is None else ((str(name), rows),)


def _compare(
    source: Session, table: CatalogueTable, target: Target, here: TableName, with_history: frozenset[str] = frozenset()
) -> int | None:
    """Compare a table on both servers, and return its row count.

    Return 1 for a sequence, and None for a table whose rows are on other hosts. For the tables in `with_history`, old
    row versions are also counted.

    Raises:
        ConsistencyError: the servers have different row counts, or a sequence has different next values.
    """
    if table.row_place is RowPlace.ELSEWHERE:
        return None
    if table.is_sequence:
        states = [
            table_transfer.sequence_state(session, name)
            for session, name in ((source, TableName(table.schema, table.name)), (target.session, here))
        ]
        if states[0] != states[1]:
            raise ConsistencyError(
                f"the sequence {here} has the state {states[1]} on the live server, but {states[0]} in the original",
                hint="zsnapdb dropped the copy again; this is a bug, please report it",
            )
        return 1
    history = table.name in with_history
    expected = tables.count(source, table.schema, table.name, with_history=history)
    delivered = tables.count(target.session, here.schema, here.table or "", with_history=history)
    if delivered != expected:
        raise ConsistencyError(
            f"{here} has {delivered} rows on the live server, but the original table has {expected}",
            hint="zsnapdb dropped the copy again; this is a bug, please report it",
        )
    return delivered


def schema_to_server(
    isolated: IsolatedServer, tools: DumpPrograms, original: TableName, name: TableName, target: Target
) -> Delivered:
    """Copy the schema's tables and sequences into a new schema on the live server. Its name must be unused.

    If an error occurs, no part of the schema remains on the live server. Old row versions are included if both servers
    support this. Views, triggers, routines and events are omitted, because they contain the name of the old schema.
    """
    with isolated.session() as session:
        schema = schema_catalogue.content(session, original.schema)
        digits = lost_digits(schema_catalogue.single_columns(session, original.schema))
        table_transfer.take_numbers_from(session, schema, name.schema)
        dump = dump_of_schema(schema, DumpScope.TABLES, _no_history(schema.tables, tools, target))
        table_transfer.create_schema(target.session, name.schema, schema)
        with undone_on_error(lambda: _drop(target, name, unlogged=False)):
            load(isolated, tools, dump, target.login, name.schema, target.timeout)
            counts = [
                (table.name, _compare(session, table, target, TableName(name.schema, table.name), dump.with_history))
                for table in schema.stored
            ]
    return Delivered(
        f"{name} on {target.address}",
        TransportChoice(Transport.DUMP, "a schema goes by dump"),
        tuple((table, rows) for table, rows in counts if rows is not None),
        (*dump.left_out, *digits, *_code(schema)),
    )


def _code(schema: SchemaContent) -> Iterator[str]:
    """Yield the views, routines, events and triggers.

    They are not delivered, because they contain the name of the old schema.
    """
    yield from (f"view {view}" for view in schema.views)
    yield from schema.routines
    yield from (f"event {event}" for event in (*schema.events, *schema.hidden_events))
    yield from (f"trigger {trigger}" for trigger in schema.triggers)
