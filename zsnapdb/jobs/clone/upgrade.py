"""Rehearses a server upgrade on an ephemeral clone.

The old version recovers the clone and answers the configured queries. Then the new version starts on the clone and
upgrades it. The new version checks the tables and answers the same queries.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone.create import OWNER, RunningClone, ephemeral_clone
from zsnapdb.jobs.clone.create_plan import planned_source
from zsnapdb.jobs.clone.isolated_start import CloneServer
from zsnapdb.jobs.clone.lifecycle import server_of
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.jobs.host.server_copy import client_file
from zsnapdb.jobs.host.startup_requirements import refuse_lacking_plugins
from zsnapdb.mysql import variables
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process.process_managers import Limits
from zsnapdb.mysql.schema.schema_catalogue import stored_tables
from zsnapdb.mysql.schema.tables import TableChecker
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.migration_findings import (
    CheckedTable,
    ComparedQuery,
    QueryResult,
    complaints,
    judge_table,
    unknown_modes,
)
from zsnapdb.planning.schema_content import CatalogueTable, RowPlace
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.planning.server_copy.version_compatibility import objection_to_upgrade
from zsnapdb.planning.server_family import family

_LONG_SECONDS = 6 * 3600.0
_BATCH = 500


@dataclass(frozen=True)
class RehearsalPhase:
    """A phase of the rehearsal and its duration in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    `upgrade_output` is the end of mariadb-upgrade's output. It is empty if the server upgrades its files without that
    program.
    """

    backup_id: str
    old_version: str
    new_version: str
    phases: tuple[RehearsalPhase, ...]
    tables: tuple[CheckedTable, ...]
    queries: tuple[ComparedQuery, ...]
    warnings: tuple[str, ...]
    upgrade_output: str

    @property
    def problems(self) -> tuple[str, ...]:
        """The tables and queries with a problem. If the result is empty, the upgrade would succeed."""
        bad = [f"table {checked.table}: {checked.answer}" for checked in self.tables if not checked.is_good]
        bad += [
            f"`{compared.query}`: {compared.problem or 'the result differs from the result before the upgrade'}"
            for compared in self.queries
            if not compared.is_equal
        ]
        return tuple(bad)


class _Clock:
    def __init__(self, events: Events) -> None:
        self.phases: list[RehearsalPhase] = []
        self._events = events
        self._began = time.monotonic()

    def done(self, name: str) -> None:
        now = time.monotonic()
        self.phases.append(RehearsalPhase(name, now - self._began))
        self._began = now
        self._events.tell(f"{name}: {self.phases[-1].seconds:.1f} s")


def rehearse(
    settings: Settings,
    instance: Instance,
    source: str,
    binary: Path,
    queries: Sequence[str],
    *,
    accepts_older: bool = False,
) -> Rehearsal:
    """Rehearse the upgrade of the instance to the server program `binary`, on an ephemeral clone of a snapshot set.

    The files in a snapshot are like files after a crash, and a newer version refuses to use their redo logs. So the old
    version first recovers the files and shuts down cleanly. Afterwards the clone is destroyed. For `accepts_older`, see
    `locate`.

    Raises:
        PreflightError: the program cannot upgrade files of this version, or its upgrade program is missing. No clone
            was created.
        ServerError: the new server does not start (the message contains the end of its log), or its upgrade program
            failed.
    """
    clock = _Clock(instance.events)
    request = CloneRequest(owner=OWNER, source=source, accepts_older=accepts_older)
    origin = planned_source(settings, with_volumes(instance), request).origin
    upgrade_program = _fitting(origin, binary)
    refuse_lacking_plugins(instance.settings.server, binary, origin.plugins)
    with ephemeral_clone(settings, instance, request) as clone:
        clock.done("clone, start the old version")
        with clone.session(read_timeout=_LONG_SECONDS) as session:
            old_version = variables.version(session)
            before = [_run_query(session, query) for query in queries]
            clock.done("queries before")
            # A slow shutdown completes the purge of undo logs and the merges of buffered changes, so that the new
            # version needs no logs of the old version (refman 8.4, "Preparing Your Installation for Upgrade").
            variables.shut_down_slowly(session)
        clone.process.stop(timeout=_LONG_SECONDS)
        clock.done("clean shutdown")
        logged = clone.process.error_log.stat().st_size
        described, gone = _for_release(server_of(settings, clone.info), process_managers.version_of(binary))
        described.copy.write_option_file(described.identity())
        session = _start_new(clone, binary, described)
        with session:
            clock.done("start the new version")
            output = _upgrade(clone, upgrade_program) if upgrade_program is not None else ""
            clock.done("upgrade")
            new_version = variables.version(session)
            checker = TableChecker(session)
            checked = tuple(_check(checker, table) for table in _tables(session))
            clock.done("check tables")
            compared = tuple(_compare(session, query, result) for query, result in zip(queries, before, strict=True))
            clock.done("queries after")
        with safe_open.open_to_read(clone.process.error_log) as log:
            log.seek(logged)
            warnings = complaints(log.read().decode(errors="replace"))
        if gone:
            note = f"{new_version} does not start with {', '.join(gone)} in sql_mode, which the clone's server had not"
            warnings = (f"{note}: remove that from its options", *warnings)
        return Rehearsal(
            clone.info.backup_id, old_version, new_version, tuple(clock.phases), checked, compared, warnings, output
        )


def _for_release(described: CloneServer, version: str) -> tuple[CloneServer, tuple[str, ...]]:
    """Return the server without the SQL modes that the given version does not know, and the removed modes.

    A server exits at the first unknown mode, even if a later line overrides the setting.
    """
    recorded = described.copy.variables
    modes = recorded.get("sql_mode", "")
    gone = unknown_modes(described.copy.flavour, version, modes)
    if not gone:
        return described, ()
    left = ",".join(mode for mode in modes.split(",") if mode not in gone)
    return replace(described, copy=replace(described.copy, variables={**recorded, "sql_mode": left})), gone


def _start_new(clone: RunningClone, binary: Path, described: CloneServer) -> Session:
    """Start the new server with the clone's option file. On MySQL the start includes the upgrade (upgrade=AUTO)."""
    own = described.copy.settings
    limits = Limits(own.memory, own.processors, own.nice)
    try:
        session = clone.process.start(
            binary,
            own.user,
            clone.address,
            clone.internal,
            timeout=_LONG_SECONDS,
            manager=process_managers.choose(own.manager),
            limits=limits,
            sandbox=described.copy.sandbox(binary, described.identity()),
            zone=described.copy.given_zone,
        )
        session.close()
    except ServerError as error:
        raise ServerError(
            f"the new server {binary} does not start on the data: {error.message}",
            hint="check server.options for an option that the new version does not know",
        ) from error
    return clone.session(read_timeout=_LONG_SECONDS)


def _upgrade(clone: RunningClone, program: Path) -> str:
    """Run the new version's mariadb-upgrade (MariaDB manual, "mariadb-upgrade") and return the end of its output."""
    with client_file(clone.address, clone.internal) as file:
        return process_managers.run([str(program), f"--defaults-file={file}"], timeout=_LONG_SECONDS)[-2000:].strip()


def _fitting(origin: SourceServer, binary: Path) -> Path | None:
    """Return the upgrade program that belongs to the new server program; None if the server upgrades its files itself.

    Raises:
        PreflightError: the server program cannot upgrade files of this origin, or its upgrade program is missing.
    """
    if not (binary.is_absolute() and os.access(binary, os.X_OK)):
        raise PreflightError(
            f"{binary} cannot be executed", hint="give the absolute path of the new mysqld or mariadbd"
        )
    objection = objection_to_upgrade(origin.flavour, origin.version, process_managers.version_of(binary))
    if objection is not None:
        raise PreflightError(
            f"{binary} cannot upgrade the files of {family(origin.flavour).title} {origin.version}: {objection}",
            hint="name the server program of a release that the files may be upgraded to: --binary PATH",
        )
    return _upgrade_program(binary) if family(origin.flavour).upgrades_by_program else None


def _upgrade_program(binary: Path) -> Path:
    """Return the path of mariadb-upgrade: in the server program's folder, or in the bin folder next to sbin."""
    for folder in (binary.parent, binary.parent.parent / "bin"):
        for name in ("mariadb-upgrade", "mysql_upgrade"):
            if os.access(folder / name, os.X_OK):
                return folder / name
    raise PreflightError(
        f"there is no mariadb-upgrade next to {binary}",
        hint="install the client programs of the new version in the same folder",
    )


def _tables(session: Session) -> list[CatalogueTable]:
    """Return the users' tables. Leave out tables with rows on other hosts, which a rehearsal must not access."""
    return [
        table
        for table in stored_tables(session)
        if table.schema not in SYSTEM_SCHEMAS and table.row_place is not RowPlace.ELSEWHERE
    ]


def _check(checker: TableChecker, table: CatalogueTable) -> CheckedTable:
    rows = [row for for_upgrade in (True, False) for row in checker.check(table, for_upgrade=for_upgrade)]
    return judge_table(f"{table.schema}.{table.name}", [(str(kind), str(text)) for _, _, kind, text in rows])


def _run_query(session: Session, query: str) -> QueryResult:
    digest, count = hashlib.sha256(), 0
    _, rows = session.stream(query, batch=_BATCH)
    for row in rows:
        digest.update(repr(row).encode())
        count += 1
    return QueryResult(count, digest.hexdigest())


def _compare(session: Session, query: str, before: QueryResult) -> ComparedQuery:
    try:
        return ComparedQuery(query, before, _run_query(session, query))
    except ServerError as error:
        return ComparedQuery(query, before, None, error.message)
