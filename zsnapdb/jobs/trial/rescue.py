"""Rescues a table or schema from a past point: copies it to a dump file, or to a live server under a new name.

The table or schema comes from an ephemeral server, which runs on a copy of the backup.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base import filesystem_checks
from zsnapdb.base.domain_types import SNAPSHOT_PREFIX, SnapshotSet, backup_time, is_backup_id, pool_of
from zsnapdb.base.errors import ExistsError, PreflightError, UsageError
from zsnapdb.base.files import password_in
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.dataset_tuning import volume_facts
from zsnapdb.jobs.host.local_snapshot_sets import described_sets
from zsnapdb.jobs.host.server_copy import Copy, check_recovered, give_files
from zsnapdb.jobs.host.startup_requirements import refuse_lacking_plugins
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.backup_selection import first_manifest
from zsnapdb.jobs.restore.offline_repository import reopen, stored_or_here
from zsnapdb.jobs.restore.plan import RestoreRequest, copy_of
from zsnapdb.jobs.trial import scratch_datasets, table_delivery
from zsnapdb.jobs.trial.server_checks import IsolatedServer
from zsnapdb.jobs.trial.table_delivery import Delivered, DumpPrograms, Target
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.session import Address, Session
from zsnapdb.mysql.tls import NO_SETTINGS, Tls
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.dataset_property_classes import data_values, explicit_values
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.steps import CloneSnapshot, Recover
from zsnapdb.planning.server_family import family, flavour_of
from zsnapdb.planning.sql_quoting import TableName, parse_table
from zsnapdb.planning.trial.rescue import DumpFile, LiveServer, ServerKind, Transport, new_name, parse_destination
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, mounting

_NEEDED = ("version", "version_comment", "innodb_page_size", "log_bin", "datadir")


@dataclass(frozen=True)
class Destination:
    """The destination of the table. It is a new file, or a live server with the password of an account on it."""

    where: DumpFile | LiveServer
    password: SecretStr
    tls: Tls = NO_SETTINGS


@dataclass(frozen=True)
class RescueRequest:
    """The requested rescue: the original table or schema, the point and the destination.

    If `chosen_name` or `transport` is None, zsnapdb chooses its value. `timeout` is the time limit of each long command
    in seconds. `accepts_older` and `history` have the same meaning as in `RestoreRequest`.
    """

    original: TableName
    to: str
    destination: Destination
    chosen_name: str | None
    transport: Transport | None
    timeout: float
    accepts_older: bool = False
    history: str | None = None


@dataclass(frozen=True)
class RescuePlan:
    """The plan of a rescue: the backup, the origin of the server's files, and the destination with the new name."""

    request: RescueRequest
    restore: RestorePlan
    local: SnapshotSet | None
    place: scratch_datasets.Scratch
    copy: Copy
    tools: DumpPrograms
    name: TableName

    @property
    def way(self) -> str:
        """The origin of the ephemeral server's files."""
        if self.local is not None or any(isinstance(step, CloneSnapshot) for step in self.restore.steps):
            return "clone of the snapshots on this host"
        return "restore from the repository"

    @property
    def into(self) -> str:
        """The destination of the table or schema."""
        where = self.request.destination.where
        if isinstance(where, DumpFile):
            return where.path
        return f"{self.name} on {where.user}@{where.socket or f'{where.host}:{where.port}'}"


@dataclass(frozen=True)
class RescueResult:
    """The delivered table, after the ephemeral server was removed. Times are in seconds."""

    plan: RescuePlan
    delivered: Delivered
    server_seconds: float
    delivery_seconds: float


def original_name(table: str | None, schema: str | None) -> TableName:
    """Return the full name of the table or schema to rescue.

    Raises:
        UsageError: both a table and a schema are given, or neither of them.
    """
    if table is not None and schema is None:
        return parse_table(table)
    if schema and table is None:
        return TableName(schema, None)
    raise UsageError(
        "a rescue needs either a table or a schema", hint="name one: --table schema.table, or --schema name"
    )


def transport(text: str) -> Transport | None:
    """Return the requested transport; None for `auto`.

    Raises:
        UsageError: the name is unknown.
    """
    if text in ("auto", *Transport):
        return None if text == "auto" else Transport(text)
    raise UsageError(f"invalid --transport {text!r}", hint="choose from auto, tablespace, dump")


def destination(
    settings: Settings,
    *,
    into: str | None,
    instance: str | None,
    password_file: Path | None,
    user: str | None = None,
    tls: Tls = NO_SETTINGS,
) -> Destination:
    """Return the destination: a file, an address, or the server of a configured instance.

    `user` is the account on the server of an instance. If `user` is None, root is used, because the configured account
    may have no right to write. `tls` contains the TLS settings for an address. A configured instance has its own TLS
    settings.

    Raises:
        UsageError: several destinations or no destination are given.
    """
    if into is not None and instance is None and user is None:
        return Destination(parse_destination(into), _read_password(password_file), tls)
    if instance is not None and into is None:
        configured = Instance.of(settings, instance)
        live = configured.settings
        socket = str(live.socket) if live.socket else None
        where = LiveServer(user or "root", live.host or "127.0.0.1", live.port, socket, None)
        is_own = user == live.user and password_file is None
        password = live.password() if is_own else _read_password(password_file)
        return Destination(where, password, configured.tls)
    raise UsageError(
        "a rescue needs either a file, an address or an instance as its destination",
        hint="name one: --into FILE, --into mysql://user@host/schema, or --into-instance NAME, with --user if not root",
    )


def _read_password(path: Path | None) -> SecretStr:
    if path is None:
        return SecretStr("")
    return password_in(path, "the password file")


def _own_set(instance: Instance, manifest: Manifest, place: scratch_datasets.Scratch) -> SnapshotSet | None:
    """Return the backup's snapshot set if the pool of the scratch datasets has all its snapshots, compared by GUID."""
    here = instance.with_volumes({volume.role: volume.dataset for volume in manifest.volumes})
    pool = pool_of(place.container)
    if not all(pool_of(dataset) == pool and datasets.exists(dataset) for dataset in here.volumes.values()):
        return None
    original = manifest.volumes[0].snapshot.removeprefix(SNAPSHOT_PREFIX)
    for local in described_sets(here, only=original) if is_backup_id(original) else ():
        if {role: snapshot.guid for role, snapshot in local.set.snapshots.items()} == manifest.guids():
            return local.set
    return None


def plan(settings: Settings, instance: Instance, repository: Repository, request: RescueRequest) -> RescuePlan:
    """Return the plan of a rescue; change nothing.

    Raises:
        ZsnapdbError: the name is in use, the backup does not exist, or a program is missing.
    """
    place = scratch_datasets.place(
        scratch_datasets.home(instance, scratch_datasets.datasets_of_newest(instance, repository)),
        instance.host.new_backup_id(),
        "rescue",
    )
    wanted = RestoreRequest(
        request.to,
        place.top,
        makes_parent=True,
        accepts_older=request.accepts_older,
        history=request.history,
        # A rescue, unlike a drill, need not test the repository. So it uses the nearest origin.
        origin=RestoreOrigin.AUTO,
    )
    planned = restore_plan.make(settings, instance, repository, wanted)
    flavour = planned.flavour
    binary = programs.fitting_program(instance.settings.server, flavour, planned.server_version).path
    refuse_lacking_plugins(instance.settings.server, binary, planned.plugins)
    paths = (
        programs.find(names, instance.settings.server, flavour, binary)
        for names in (family(flavour).dump_programs, family(flavour).client_programs)
    )
    tools = DumpPrograms(*paths)
    where = request.destination.where
    schema = where.schema if isinstance(where, LiveServer) else None
    as_of = planned.point.last.committed if planned.point.last is not None else backup_time(planned.backup_id)
    name = new_name(request.original, request.chosen_name, schema, as_of)
    if isinstance(where, DumpFile):
        if request.chosen_name is not None or request.transport is not None:
            raise UsageError(
                "--as and --transport are only for live servers",
                hint="leave them out; a dump file has the original names",
            )
        _refuse_file(Path(where.path))
    else:
        with _session(request, where) as session:
            target = _target(request, session)
            if target.kind.flavour is not flavour:
                raise PreflightError(
                    f"{target.address} is {target.kind.flavour}, the backup is of {flavour}",
                    hint="dump to a file, and convert the dump",
                )
            table_delivery.check_rights(target, name, request.transport)
            table_delivery.check_free(target, name)
    local = None if planned.replays else _own_set(instance, first_manifest(instance, repository, planned), place)
    return RescuePlan(request, planned, local, place, copy_of(instance, planned), tools, name)


def _refuse_file(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ExistsError(f"{path} exists", hint="name another file; nothing is overwritten")
    if not (path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK)):
        raise PreflightError(
            f"the folder of {path} does not exist, or is not writable", hint="create the folder, or name another file"
        )
    hint = "name a file on ext4, xfs, zfs or NFS, where only this account reads it"
    try:
        filesystem_checks.refuse_unfit(path.absolute().parent, filesystem_checks.NEW_FILE, hint)
    except OSError as error:
        raise PreflightError(f"making a file in {path.absolute().parent}: {error.strerror}", hint=hint) from error


def _session(request: RescueRequest, where: LiveServer) -> Session:
    address = Address(
        user=where.user,
        socket=Path(where.socket) if where.socket else None,
        host=where.host,
        port=where.port,
        tls=request.destination.tls,
    )
    return Session.open(address, request.destination.password, read_timeout=request.timeout)


def _target(request: RescueRequest, session: Session) -> Target:
    variables = global_variables(session, _NEEDED)
    kind = ServerKind(
        flavour_of(variables),
        variables["version"],
        int(variables["innodb_page_size"]),
        variables["log_bin"].upper() in ("ON", "1"),
    )
    return Target(
        session.address, request.destination.password, session, kind, Path(variables["datadir"]), request.timeout
    )


def plan_near(settings: Settings, instance: Instance, request: RescueRequest) -> RescuePlan:
    """Return the plan of a rescue; change nothing.

    If the repository does not contain the point, the plan uses only the sets and binlogs on this host.
    """
    return stored_or_here(
        instance,
        lambda repository: plan(settings, instance, repository, request),
        is_in_history=request.history is not None,
    )


def rescue(settings: Settings, instance: Instance, request: RescueRequest) -> RescueResult:
    """Plan a rescue and execute that plan. Raises the errors of `plan` and `execute`."""
    planned = plan_near(settings, instance, request)
    return execute(settings, instance, reopen(instance, planned.restore), planned)


def execute(settings: Settings, instance: Instance, repository: Repository, planned: RescuePlan) -> RescueResult:
    """Deliver the table or schema by exactly this plan.

    Afterwards the destination contains either the complete table or no part of it. The ephemeral server is always
    removed.
    """
    request = planned.request
    with scratch_datasets.ephemeral(instance, planned.place, settings.restore.mount_root):
        began = time.monotonic()
        instance.events.tell(f"{planned.way}: {planned.restore.backup_id}")
        isolated = IsolatedServer(planned.copy, planned.restore.server_id, request.timeout)
        try:
            if planned.local is not None:
                _clone(planned, planned.local)
                _start_cloned(isolated, planned)
            else:
                scratch_datasets.execute(settings, instance, repository, planned.restore)
                isolated.start()
            with isolated.session() as session:
                table_delivery.check_there(session, request.original)
            ready = time.monotonic()
            instance.events.tell(f"delivering {request.original}")
            delivered = _deliver(planned, isolated)
        finally:
            isolated.end()
    return RescueResult(planned, delivered, ready - began, time.monotonic() - ready)


def _clone(planned: RescuePlan, local: SnapshotSet) -> None:
    """Clone the snapshot of every volume, parents before children. Each clone is created and marked by one command."""
    mark = {scratch_datasets.SCRATCH_PROPERTY: planned.place.scratch_id}
    layout = planned.restore.layout
    if layout.top not in layout.datasets.values():
        datasets.create(layout.top, mark)
    tuned = volume_facts(local.snapshots[role].dataset for role in layout.datasets)
    for role, dataset in sorted(layout.datasets.items(), key=lambda item: len(item[1])):
        snapshot = local.snapshots[role]
        datasets.clone(
            snapshot.full_name,
            snapshot.guid,
            dataset,
            {
                **data_values(tuned[snapshot.dataset].properties),
                **explicit_values(),
                "mountpoint": layout.mountpoints[role],
                "canmount": "noauto",
                **mark,
            },
        )
    mounting.mount_all(layout.datasets.values())


def _start_cloned(isolated: IsolatedServer, planned: RescuePlan) -> None:
    """Start the server on the clone, and check that it recovers to exactly the backup's position."""
    give_files(planned.copy, planned.restore.owner)
    planned.copy.make_private()
    isolated.start()
    recover = next(step for step in planned.restore.steps if isinstance(step, Recover))
    position = planned.restore.position(recover.gtids, recover.binlog_file, recover.binlog_offset)
    with isolated.session() as session:
        check_recovered(session, position)


def _deliver(planned: RescuePlan, isolated: IsolatedServer) -> Delivered:
    request, where = planned.request, planned.request.destination.where
    if isinstance(where, DumpFile):
        return table_delivery.to_file(
            isolated, planned.tools, request.original, Path(where.path).absolute(), request.timeout
        )
    with _session(request, where) as session:
        target = _target(request, session)
        # The restore may have taken hours, so check again that the name is free.
        table_delivery.check_free(target, planned.name)
        if request.original.table is None:
            return table_delivery.schema_to_server(isolated, planned.tools, request.original, planned.name, target)
        facts = planned.restore
        here = ServerKind(
            facts.flavour, facts.server_version, int(facts.variables["innodb_page_size"]), has_binlog=True
        )
        return table_delivery.table_to_server(
            isolated, planned.tools, request.original, planned.name, target, request.transport, here
        )
