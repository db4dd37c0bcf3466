"""Facts about a server and its capabilities, from queries to the server. No decision depends on the major version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.base.errors import ServerError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.mysql import locks
from zsnapdb.mysql.schema.schema_catalogue import engine_counts, has_column, schemas
from zsnapdb.mysql.session import Row, Session
from zsnapdb.mysql.variables import global_variables, server_flavour
from zsnapdb.planning.backup.lock_strategy import row_versions_are_flawed
from zsnapdb.planning.server_facts import (
    COMPONENT,
    FUNCTION,
    INFORMATION,
    Channel,
    Dialect,
    LoadedBy,
    Plugin,
    ServerFacts,
    ServerPlugins,
    release_of,
)
from zsnapdb.planning.server_family import family, flavour_of

_PLUGINS = (
    "SELECT plugin_name, plugin_type, COALESCE(plugin_library, ''), plugin_status FROM information_schema.plugins WHERE"
    " (plugin_library IS NOT NULL AND plugin_status = 'ACTIVE') OR (plugin_library IS NULL AND load_option NOT LIKE"
    " 'FORCE%' AND plugin_type <> 'INFORMATION SCHEMA')"
)
_ROWS = "SELECT name FROM mysql.plugin"
_FUNCTIONS = "SELECT name, dl FROM mysql.func"
_COMPONENTS = "SELECT component_urn FROM mysql.component"
_URN = "file://"


def loaded_plugins(session: Session, variables: Mapping[str, str]) -> ServerPlugins:
    """Return the plugins of the server. Change nothing.

    Plugins that the account cannot see are missing. To see all plugins, the account needs SELECT on tables of the
    schema `mysql`. A name that would be invalid in an option file is skipped.
    """
    by_row = {str(name).lower() for (name,) in _rows_or_none(session, _ROWS)}
    made = [_plugin(row, by_row) for row in session.query(_PLUGINS)]
    made += [_parse_plugin(name, FUNCTION, library) for name, library in _rows_or_none(session, _FUNCTIONS)]
    made += [_component(str(urn)) for (urn,) in _rows_or_none(session, _COMPONENTS)]
    return ServerPlugins(
        plugins=tuple(
            _shortened(sorted({one for one in made if one is not None}, key=lambda one: (one.kind, one.name)))
        ),
        folder=variables.get("plugin_dir", ""),
        maturity=variables.get("plugin_maturity", "").lower(),
    )


def _shortened(plugins: Sequence[Plugin]) -> Iterator[Plugin]:
    """Yield the plugins.

    An information_schema plugin is left out if another plugin in the result is from the same library.
    """
    named = {plugin.library for plugin in plugins if plugin.kind != INFORMATION}
    for plugin in plugins:
        if plugin.kind != INFORMATION or plugin.library not in named:
            named.add(plugin.library)
            yield plugin


def _plugin(row: Row, by_row: Iterable[str]) -> Plugin | None:
    name, kind, library, status = (str(value) for value in row)
    how = LoadedBy.ROW if name.lower() in by_row else LoadedBy.OPTION
    return _parse_plugin(name, kind, library, how, is_active=status == "ACTIVE")


def _component(urn: str) -> Plugin | None:
    name = urn.removeprefix(_URN)
    return _parse_plugin(name, COMPONENT, f"{name}.so")


def _parse_plugin(
    name: object, kind: str, library: object, how: LoadedBy = LoadedBy.ROW, *, is_active: bool = True
) -> Plugin | None:
    try:
        return Plugin(name=str(name), kind=kind, library=str(library), loaded_by=how, is_active=is_active)
    except ValidationError:
        return None


def _rows_or_none(session: Session, sql: str) -> list[Row]:
    """Return the rows of the table; empty if the server lacks the table or the account cannot read it."""
    try:
        return session.query(sql)
    except ServerError:
        return []


_POSITION = ("SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
_CHANNELS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
_STOP = ("STOP REPLICA SQL_THREAD", "STOP SLAVE SQL_THREAD")
_START = ("START REPLICA SQL_THREAD", "START SLAVE SQL_THREAD")
"""Alternative statements, in the order in which they are tried.

MariaDB's SHOW ALL SLAVES STATUS comes first, because MariaDB's other statements show only one connection.
"""


def lock_statements(session: Session) -> frozenset[str]:
    """Return the lock statements that the server understands. No lock statement is executed."""
    return frozenset(statement for statement in locks.STATEMENTS if session.understands(statement))


def dialect(session: Session) -> Dialect:
    """Return the statements that this server understands.

    Raises ServerError if the server understands none of the alternatives.
    """
    return Dialect(*(_first_understood(session, forms) for forms in (_POSITION, _CHANNELS, _STOP, _START)))


def binlog_status(session: Session) -> dict[str, str]:
    """Return the server's binlog status: File, Position and the filters; empty if the server writes no binlog."""
    records = session.records(_first_understood(session, _POSITION))
    return {key: str(value or "") for key, value in records[0].items()} if records else {}


def _first_understood(session: Session, forms: Sequence[str]) -> str:
    for form in forms:
        if session.understands(form):
            return form
    raise ServerError(
        f"the server on {session.address} understands none of {', '.join(forms)}",
        hint="it is newer than this zsnapdb; please report its version",
    )


_FILTERS = (
    *("Replicate_Do_DB", "Replicate_Ignore_DB", "Replicate_Do_Table", "Replicate_Ignore_Table"),
    *("Replicate_Wild_Do_Table", "Replicate_Wild_Ignore_Table", "Replicate_Rewrite_DB"),
    *("Replicate_Do_Domain_Ids", "Replicate_Ignore_Domain_Ids", "Replicate_Ignore_Server_Ids"),
)
"""Columns of SHOW REPLICA STATUS, or of its older names, for filters that omit changes or rename schemas."""
SYSTEM_SCHEMAS = ("mysql", "sys", "information_schema", "performance_schema")


def probe(session: Session) -> ServerFacts:
    """Return all facts about the server that a backup needs. Change nothing."""
    variables = global_variables(session)
    flavour = flavour_of(variables)
    forms = dialect(session)
    logged, ignored = _binlog_filters(session, forms)
    return ServerFacts(
        flavour=flavour,
        version=variables["version"],
        server_uuid=variables.get("server_uuid"),
        server_id=int(variables.get("server_id", "0")),
        variables=variables,
        engines=engine_counts(session, SYSTEM_SCHEMAS),
        tablespace_files=_tablespace_files(session, flavour),
        lock_statements=lock_statements(session),
        dialect=forms,
        sees_all_tables=_sees_all_tables(session),
        redo_disabled=_redo_disabled(session),
        channels=channels(session, forms),
        prepared_xa=_prepared_xa(session),
        row_versions=_row_versions(session, flavour, variables["version"]),
        gtid_purged=GtidSet.parse(variables.get("gtid_purged", "")),
        plugins=loaded_plugins(session, variables),
        binlog_do=logged,
        binlog_ignore=ignored,
        schemas=tuple(name for name in schemas(session) if name not in SYSTEM_SCHEMAS) if logged else (),
    )


def _binlog_filters(session: Session, forms: Dialect) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the schemas to which the binlog is restricted, and the schemas that it omits.

    MySQL has no variable for these two lists.
    """
    row = next(iter(session.records(forms.position)), {})
    logged, ignored = (str(row.get(name) or "") for name in ("Binlog_Do_DB", "Binlog_Ignore_DB"))
    return _split_list(logged), _split_list(ignored)


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def flavour_and_dialect(session: Session) -> tuple[Flavour, Dialect]:
    """Return only the flavour and dialect of the server."""
    return server_flavour(session), dialect(session)


def refresh_facts(session: Session, facts: ServerFacts, *, engines: bool) -> ServerFacts:
    """Return the facts with refreshed values of the settings that affect a snapshot and can change at any time.

    With `engines`, the tables per engine are also counted again, which is slow if the server has very many tables.
    """
    changed = global_variables(session, ("innodb_flush_log_at_trx_commit", "delay_key_write"))
    variables = {**facts.variables, **changed}
    return replace(
        facts,
        variables=variables,
        engines=engine_counts(session, SYSTEM_SCHEMAS) if engines else facts.engines,
        redo_disabled=_redo_disabled(session),
    )


def _redo_disabled(session: Session) -> bool:
    return any(str(row[1]) == "OFF" for row in session.query("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'"))


def _tablespace_files(session: Session, flavour: Flavour) -> tuple[str, ...]:
    """Return the files of InnoDB's tablespaces. A server recreates temporary tablespaces, so they are omitted.

    Both families call the temporary tablespace innodb_temporary (fsp0types.h). The column FILE_TYPE is not queried,
    because MySQL would open each tablespace and wait for a lock. INNODB_SYS_DATAFILES lists no temporary tablespaces.
    """
    rows = session.query(
        "SELECT path FROM information_schema.innodb_sys_datafiles"
        if has_column(session, "INNODB_SYS_DATAFILES", "PATH")
        else (
            "SELECT file_name FROM information_schema.files"
            " WHERE engine = 'InnoDB' AND tablespace_name <> 'innodb_temporary'"
            if family(flavour).lists_innodb_files
            else "SELECT filename FROM information_schema.innodb_sys_tablespaces WHERE name <> 'innodb_temporary'"
        )
    )
    return tuple(sorted(str(row[0]) for row in rows if row[0]))


def _sees_all_tables(session: Session) -> bool:
    """Return whether the account has SELECT on all tables. Otherwise, information_schema does not list all tables."""
    return bool(
        session.query(
            "SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'SELECT' AND REPLACE(grantee,"
            " CHAR(39), '') = CURRENT_USER()"
        )
    )


def _prepared_xa(session: Session) -> int | None:
    """Return the number of external XA transactions that are prepared.

    The result is None if the account lacks the privilege to list these transactions (XA_RECOVER_ADMIN in MySQL).
    """
    try:
        return len(session.query("XA RECOVER"))
    except ServerError:
        return None


def _row_versions(session: Session, flavour: Flavour, version: str) -> int:
    """Return the number of tables with row versions after INSTANT ADD or DROP COLUMN.

    Only releases with bugs in the recovery of such tables are queried, because INNODB_TABLES opens every table and
    waits for running DDL.
    """
    if not row_versions_are_flawed(flavour, release_of(version)):
        return 0
    return int(session.value("SELECT COUNT(*) FROM information_schema.innodb_tables WHERE total_row_versions > 0"))


def channels(session: Session, forms: Dialect) -> tuple[Channel, ...]:
    """Return the configured replication channels."""
    return tuple(channel_of(row) for row in session.records(forms.channels))


def channel_of(row: Mapping[str, Any]) -> Channel:
    """Return the channel in a row of SHOW REPLICA STATUS.

    SHOW SLAVE STATUS, the older form of this statement, uses different names for the same columns.
    """

    def first(*names: str) -> str:
        return next((str(row[name]) for name in names if row.get(name) is not None), "")

    file = first("Relay_Source_Log_File", "Relay_Master_Log_File")
    return Channel(
        name=first("Channel_Name", "Connection_name"),
        host=first("Source_Host", "Master_Host"),
        port=int(first("Source_Port", "Master_Port") or 0),
        receiving=first("Replica_IO_Running", "Slave_IO_Running") not in ("No", ""),
        applying=first("Replica_SQL_Running", "Slave_SQL_Running") not in ("No", ""),
        coordinates=(
            BinlogCoordinates(file, int(first("Exec_Source_Log_Pos", "Exec_Master_Log_Pos") or 0)) if file else None
        ),
        gtids=first("Gtid_Slave_Pos", "Executed_Gtid_Set").replace("\n", ""),
        filters=tuple(f"{name} = {row[name]}" for name in _FILTERS if row.get(name)),
    )


def published_position(session: Session, facts: ServerFacts) -> Position:
    """Return the position that the server currently reports, with binlog file, offset and executed GTIDs."""
    if not facts.has_binlog:
        return Position(facts.flavour, None, None, "server")
    rows = session.records(facts.dialect.position)
    coordinates = BinlogCoordinates(str(rows[0]["File"]), int(rows[0]["Position"])) if rows else None
    if not facts.has_gtids:
        return Position(facts.flavour, coordinates, None, "server")
    variable = family(facts.flavour).executed_variable
    return Position(
        facts.flavour,
        coordinates,
        parse_gtids(facts.flavour, str(session.value(f"SELECT @@GLOBAL.{variable}"))),
        "server",
    )
