"""Hands over a restored server: stopped, read-only, next to the old server, in place of it, or as a replica."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import parse_gtids, pool_of
from zsnapdb.base.errors import ConsistencyError, PreflightError, ServerError
from zsnapdb.base.files import password_in
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    INCARNATION_PROPERTY,
    INSTANCE_PROPERTY,
    RESTORED_PROPERTY,
    snapshot_name,
)
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.host.dataset_use_checks import dataset_of
from zsnapdb.jobs.host.server_copy import Copy, check_inside
from zsnapdb.jobs.host.site_dataset_settings import notes_on_site
from zsnapdb.jobs.record import production_restores
from zsnapdb.jobs.restore import dataset_exchange
from zsnapdb.jobs.restore.replay import served
from zsnapdb.jobs.restore.startup_steps import (
    STEP_SNAPSHOT,
    ServerWork,
    be_mounted,
    snapshot_step,
    step_snapshots,
    take_back,
    was_kept,
)
from zsnapdb.jobs.restore.volume_receive import restored_mark
from zsnapdb.jobs.steps.restore_journal import give_up_command
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.mysql.process.time_zone import host_zones
from zsnapdb.mysql.replication import channels
from zsnapdb.mysql.replication.replay import check_executed
from zsnapdb.mysql.session import Session
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.repository.production_restores import ProductionRestore
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import (
    HandoverStep,
    LeaveStopped,
    MakeReplica,
    ParallelRun,
    Promote,
    PromotePart,
    ReadOnlyStart,
    Recover,
)
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap
from zsnapdb.planning.server_copy.source_facts import Place, SourceServer
from zsnapdb.planning.server_facts import ServerFacts, place_options
from zsnapdb.planning.server_family import family
from zsnapdb.planning.server_time_zone import unit_line
from zsnapdb.zfs import datasets, destruction, mounting, version
from zsnapdb.zfs.command import number_in
from zsnapdb.zfs.destruction import Mark

_PATIENCE = 10.0
"""The time in seconds for which a replica may fail to connect to its source.

Without this limit, the server would retry for days.
"""
_QUIET_SECONDS = 600.0
"""The maximum time in seconds for which a replica that is still behind waits for the next event of its source."""


@dataclass(frozen=True)
class CompletedHandover:
    """The result of a handover: the option file, and the port and process of a running server.

    `option_file` is None if the server uses the option files of the host. `socket` is set only for a server that was
    started with `--handover look`.
    """

    option_file: Path | None
    port: int | None = None
    pid: int | None = None
    notes: tuple[str, ...] = ()
    socket: Path | None = None


def _look_around(work: ServerWork, step: ReadOnlyStart) -> CompletedHandover:
    """Start the server read-only. It is not handed over: its datasets and snapshots still belong to the restore."""
    be_mounted(work)
    copy = work.copy
    copy.process().kill_all()
    if was_kept(work, step.name):
        # An interrupted run had already started this step.
        take_back(work, f"{STEP_SNAPSHOT}{step.name}")
    else:
        snapshot_step(work, step.name)
    flavour = work.plan.flavour
    with served(
        work,
        port=None,
        server_id=step.server_id,
        stays=True,
        finally_do=lambda session: channels.refuse_writes(session, flavour),
    ) as session:
        _check_point(work, session)
    again = f"zsnapdb restore {work.plan.instance} --target {work.plan.layout.top} --continue-to"
    note = (
        f"it answers to its own accounts; `{again} next --handover look` applies one more transaction, and"
        f" `{again} here` ends the look and leaves it stopped"
    )
    identity = copy.identity(server_id=step.server_id, port=None, access=LoginAccess.ACCOUNTS)
    return CompletedHandover(None, pid=copy.process().pid(), notes=(note,), socket=Path(identity.socket))


def _check_point(work: ServerWork, session: Session) -> ServerFacts:
    """Return the facts of the started server.

    Raises:
        ConsistencyError: the server is not exactly at the point, or uses files outside its own datasets.
    """
    facts = probe(session)
    expected = work.plan.point.gtids
    gtids = parse_gtids(work.plan.flavour, expected) if expected is not None else None
    check_executed(session, work.plan.flavour, gtids)
    check_inside(facts, Path(work.plan.layout.mount))
    return facts


def hand_over(work: ServerWork, step: HandoverStep) -> CompletedHandover:
    """Run the handover step. If the step is interrupted, it can be repeated."""
    left = _hand_over(work, step)
    if not isinstance(step, Promote):
        left = replace(left, notes=(*left.notes, *_notes_on_use(work, left.pid)))
    if isinstance(step, ReadOnlyStart):
        return left
    return replace(left, notes=(*left.notes, *_zone_notes(work.plan, step), *notes_on_site(work.plan.site_commands)))


def _notes_on_use(work: ServerWork, pid: int | None) -> tuple[str, ...]:
    """Return notes that say how to log in to the restored server, how to stop it, and how to remove it."""
    plan, kind = work.plan, family(work.plan.flavour)
    removal = f"`{give_up_command(plan)}` destroys its datasets"
    if pid is None:
        return (removal,)
    client = shlex.join(
        [kind.client_programs[0], f"--socket={work.copy.process().socket}", "--user=NAME", "--password"]
    )
    return (
        f"log in with an account of the restored server: `{client}`",
        f"`kill {pid}` shuts the server down and keeps its data",
        f"{removal}, and ends its server",
    )


def _zone_notes(plan: RestorePlan, step: HandoverStep) -> tuple[str, ...]:
    """Return a note with the line that a systemd unit needs to start the server with the source's time zone."""
    is_in_its_place = isinstance(step, Promote) and not plan.receives
    line = None if plan.zone is None or is_in_its_place else unit_line(plan.zone, host_zones(plan.zone))
    if line is None:
        return ()
    return (f"its source had another time zone than this host: give a unit that starts it the line {line}",)


def _hand_over(work: ServerWork, step: HandoverStep) -> CompletedHandover:
    if isinstance(step, ReadOnlyStart):
        return _look_around(work, step)
    if isinstance(step, Promote):
        return _promote(work, step)
    be_mounted(work)
    datasets.set_on_all(work.datasets, {"canmount": "on"})
    # From now on the restored datasets belong to the user, so other programs may create snapshots of them.
    named = sorted({work.plan.layout.top, *work.datasets})
    datasets.inherit(destruction.owned_datasets(named, work.mark), list(NO_SNAPSHOTS))
    if isinstance(step, LeaveStopped):
        return _leave_stopped(work, step)
    return _run_beside(work, step) if isinstance(step, ParallelRun) else _make_replica(work, step)


def _drop_step_snapshots(work: ServerWork) -> None:
    for name in step_snapshots(work.datasets):
        destruction.destroy_snapshot(name, work.mark)


def leave_to_trial(work: ServerWork, step: LeaveStopped) -> CompletedHandover:
    """Leave an ephemeral copy stopped, with its option file.

    The restore still owns the copy. So the copy is not mounted at boot, and other programs create no snapshots of it.
    The copy stays mounted after its server has recovered.
    """
    copy = work.copy
    identity = copy.identity(server_id=step.server_id, port=None, access=LoginAccess.ACCOUNTS)
    copy.write_option_file(identity)
    return CompletedHandover(Path(identity.option_file))


def _leave_stopped(work: ServerWork, step: LeaveStopped) -> CompletedHandover:
    left = leave_to_trial(work, step)
    _drop_step_snapshots(work)
    notes: tuple[str, ...] = ()
    if work.plan.point.following is not None:
        text = (
            "the restored server has the identity of the old server, but not its transactions after the point; to"
            " accept writes in its place, use --handover promote"
        )
        notes = (text,)
    return replace(left, notes=notes)


def _run_beside(work: ServerWork, step: ParallelRun) -> CompletedHandover:
    copy = work.copy
    copy.process().kill_all()
    copy.remove_identity()
    with served(work, port=step.port, server_id=step.server_id, stays=True) as session:
        _check_other(work, session, step.server_id, step.port)
    return _running(work, copy, step.server_id, step.port, ())


def _running(work: ServerWork, copy: Copy, server_id: int, port: int, last: tuple[str, ...]) -> CompletedHandover:
    identity = copy.identity(server_id=server_id, port=port, access=LoginAccess.ACCOUNTS)
    copy.write_option_file(identity, last)
    _drop_step_snapshots(work)
    return CompletedHandover(Path(identity.option_file), port, copy.process().pid())


def _check_other(work: ServerWork, session: Session, server_id: int, port: int) -> None:
    """Raise ConsistencyError unless the started server is exactly at the point and has its own identity."""
    facts = _check_point(work, session)
    wrong = []
    if facts.server_uuid is not None and facts.server_uuid == work.plan.server_uuid:
        wrong.append(f"its server_uuid is the old server's, {facts.server_uuid}")
    if facts.server_id != server_id:
        wrong.append(f"its server_id is {facts.server_id}, not {server_id}")
    if int(facts.variables["port"]) != port:
        wrong.append(f"its port is {facts.variables['port']}, not {port}")
    if wrong:
        raise ConsistencyError(
            "the restored server is not separate from the old one: " + "; ".join(wrong),
            hint="the server was stopped; this is a bug in zsnapdb, please report it",
        )


def _make_replica(work: ServerWork, step: MakeReplica) -> CompletedHandover:
    copy = work.copy
    copy.process().kill_all()
    copy.remove_identity()
    password = ""
    if step.password_file is not None:
        password = password_in(Path(step.password_file), "the source's password file").get_secret_value()
    expected = work.plan.point.gtids
    if expected is None:
        raise PreflightError(
            "the server's transactions have no GTIDs, so a replica would not know where to begin",
            hint="set gtid_mode = ON on the source, or use --handover run",
        )
    source = channels.ReplicationSource(
        step.source_host, step.source_port, step.source_user, password, work.instance.tls
    )
    flavour = work.plan.flavour
    with served(
        work,
        port=step.port,
        server_id=step.server_id,
        last=channels.replica_options(flavour),
        stays=True,
        connects=True,
        reads=source.files,
        finally_do=lambda s: channels.refuse_writes(s, flavour),
    ) as session:
        _check_other(work, session, step.server_id, step.port)
        channels.follow_source(session, flavour, source, parse_gtids(flavour, expected))
        work.events.tell(f"replicating from {step.source_host}:{step.source_port}; waiting until it has caught up")
        _catch_up(work, session)
    return _running(work, copy, step.server_id, step.port, channels.lasting_replica_options(flavour))


@dataclass
class SourceWatch:
    """A watch for a replication source that keeps the connection open but no longer sends events.

    Times are monotonic, in seconds. A replica that is still applying received events is not waiting for the source.
    """

    received: str = ""
    since: float | None = None

    def check(self, lag: channels.Lag, now: float) -> None:
        """Raise ServerError if the replica has waited for its source for too long."""
        if self.since is None or not lag.waits_for_source or lag.received != self.received:
            self.received, self.since = lag.received, now
        elif now - self.since > _QUIET_SECONDS:
            raise ServerError(
                f"the replica has received nothing from its source for {_QUIET_SECONDS / 60:.0f} minutes, and has not"
                " caught up",
                hint="check the source and the network between both; then run the restore with --resume",
            )


def _catch_up(work: ServerWork, session: Session) -> None:
    first_refused: float | None = None
    watch = SourceWatch()
    while True:
        lag = channels.replica_lag(session, work.plan.flavour)
        now = time.monotonic()
        first_refused = (first_refused or now) if lag.refused else None
        if first_refused is not None and now - first_refused > _PATIENCE:
            raise ServerError(
                f"the replica cannot connect to its source: {lag.refused}",
                hint=(
                    "check the source, its replication account, and `tls`, `tls_ca` and `tls_verify` of the instance."
                    " The server of the replica must be able to read the file in `tls_ca`. Then run the restore with"
                    " --resume"
                ),
            )
        if lag.error:
            raise ServerError(
                f"the replica stopped: {lag.error}",
                hint="check the account on the source, and that the source still has the binlogs since the backup",
            )
        if lag.has_caught_up:
            return
        watch.check(lag, now)
        time.sleep(0.5)


def _promote(work: ServerWork, step: Promote) -> CompletedHandover:
    """Replace the old datasets with the restored datasets, and keep the old ones. Finished actions are not repeated."""
    place = min(part.place for part in step.parts)
    with exclusive(f"promote-{place}", doing=f"putting a restore in place of {place}", folder=work.instance.host.run):
        if datasets.exists(work.plan.layout.top):
            work.copy.process().stop(timeout=work.instance.settings.server.start_timeout)
            dataset_exchange.swap(work.plan, step)
        return _take_over(work, step)


def _take_over(work: ServerWork, step: Promote) -> CompletedHandover:
    """Hand over the restored datasets, which now have the old names, to the user. Finished actions are not repeated.

    Raises:
        NotOursError: a dataset with these names does not belong to this restore; nothing was changed.
    """
    for part in step.parts:
        destruction.prove([part.place], work.mark, Mark(INCARNATION_PROPERTY, step.incarnation))
    places = {part.role: part.mountpoint for part in step.parts}
    is_foreign = bool(work.plan.receives)
    _give_properties(step, is_foreign=is_foreign)
    _mount_in_order(step)
    root = Path(min(places.values(), key=len))
    paths = PathMap(tuple((point, point) for point in places.values()))
    copy = replace(work.copy, paths=paths, root=root)
    if (root / PRIVATE_FOLDER).exists():
        # The private folder is removed at the end. If it no longer exists, an earlier run got past this point, and a
        # server may be running here.
        copy.turn_lists()
        # The server takes the place of the old one and keeps its keys.
        server.remove_uuid(copy.datadir)
        safe_open.remove_tree(root / PRIVATE_FOLDER)
    # The remaining actions may take seconds on a busy pool, and the server need not be stopped for them.
    work.in_place()
    dataset_use_checks.refuse_other_datasets({part.old: part.old_guid for part in step.parts if part.old is not None})
    # An earlier run may have got past this point. If a dataset no longer has the restore's mark, all its snapshots
    # belong to the user.
    ours = [part for part in step.parts if destruction.is_ours(part.place, work.mark)]
    for part in ours:
        _take_over_snapshots(work.plan, part)
    # A limit on a parent dataset includes the data of its child datasets.
    for part in ours:
        dataset_exchange.copy_site_settings(part, work.events.warn, is_foreign=is_foreign)
        datasets.inherit([part.place], [RESTORED_PROPERTY, INSTANCE_PROPERTY, BACKUP_PROPERTY])
    dataset_exchange.open_again([part.place for part in step.parts], work.events.warn)
    is_sealed = dataset_use_checks.seal(
        step.parts, work.plan.restore_id, work.instance.name, _replaced_origin(work.plan, step)
    )
    _note_history(work, step)
    # Mark the old datasets last: only marked datasets can be removed, and only after a finished exchange.
    dataset_use_checks.mark(step.parts, work.plan.restore_id, work.instance.name, work.instance.host.latest())
    kept = tuple(
        f"the old {part.place} is kept as {part.old}, not mounted" for part in step.parts if part.old is not None
    )
    if is_sealed:
        again = f"zsnapdb clone create {work.instance.name} --from {work.plan.restore_id}"
        kept = (*kept, f"what was written after the point is in the old datasets: `{again}` makes a clone of them")
    again = (
        f"start the server as the site does, then {_backups_again(work.instance, is_increment=bool(work.plan.clones))}"
    )
    if family(work.plan.flavour).gtids_carry_server_id:
        server_id = f"server_id = {step.server_id}" if step.server_id is not None else "a new server_id"
        again = (
            f"set {server_id} in the option file of the server, because it would reuse GTIDs of transactions that were"
            f" left out; then {again}"
        )
    lines = place_options(work.plan.variables)
    if lines and all(part.old is None for part in step.parts):
        kept = (*kept, f"the option file of the server on the lost host had {', '.join(lines)}")
    return CompletedHandover(None, notes=(*kept, again))


def _backups_again(instance: Instance, *, is_increment: bool) -> str:
    """Return how a user makes the next backup. A host whose configuration names no server is set up first."""
    if instance.settings.socket is None and instance.settings.host is None:
        setup = f"zsnapdb setup {instance.repository.url} --take-over"
        return f"configure this host's own signing key and credentials, and run `{setup}`"
    return f"run `zsnapdb backup`, which makes {'an increment' if is_increment else 'a full backup'}"


def _note_history(work: ServerWork, step: Promote) -> None:
    """If the plan restores a backup, record for later commands that production lost the states after this backup."""
    if work.plan.base is None:
        return
    sealed = [f"{part.old}@{snapshot_name(work.plan.restore_id)}" for part in step.parts if part.old is not None]
    place = step.parts[0].place
    seen = datasets.properties(sealed[0] if sealed else place, ["createtxg"])
    group = number_in(seen["createtxg"].value, ["zfs", "get", "createtxg"])
    made = ProductionRestore(
        restore_id=work.plan.restore_id,
        base_pool=work.plan.base[0],
        base_group=work.plan.base[1],
        pool=version.pool_guid(pool_of(place)),
        group=group,
    )
    production_restores.note_production_restore(work.instance, made)


def _give_properties(step: Promote, *, is_foreign: bool) -> None:
    """Set the incarnation and the old datasets' mount points on the new datasets, unless an earlier run has done so.

    Also copy the properties that change how files in the datasets behave. ZFS remounts a dataset when its mount point
    is set, which fails if another dataset is mounted below it (zfsprops(7)).
    """
    wanted = {
        part.place: {
            "mountpoint": part.mountpoint_property,
            "canmount": part.old_canmount or "on",
            INCARNATION_PROPERTY: step.incarnation,
        }
        for part in step.parts
    }
    seen = datasets.properties_of(list(wanted), ["mountpoint", "canmount", INCARNATION_PROPERTY])
    missing = [
        part
        for part in step.parts
        if not seen[part.place][INCARNATION_PROPERTY].is_local
        or any(seen[part.place][name].value != value for name, value in wanted[part.place].items())
    ]
    if not missing:
        return
    for part in reversed(step.parts):
        datasets.unmount(part.place)
    for part in missing:
        values = dataset_exchange.behaviour_of(part, is_foreign=is_foreign) | wanted[part.place]
        if part.old_canmount_is_set is False:
            # The default is set last. So if it is not set, a run was interrupted before this point.
            del values["canmount"]
        datasets.set_properties(part.place, values)
    dataset_exchange.give_defaults(missing)


def _mount_in_order(step: Promote) -> None:
    """Mount the datasets, parents first. If the mount of a parent hides a child dataset, mount the child again.

    ZFS may mount a dataset when its mount point is set. If a run is killed between two of these settings, a child
    dataset may be mounted first. The later mount of its parent then hides it.
    """
    seen = datasets.properties_of([part.place for part in step.parts], ["mounted"])
    mounted = [part for part in step.parts if seen[part.place]["mounted"].value == "yes"]
    visible = [part for part in mounted if dataset_of(Path(part.mountpoint)) == part.place]
    hidden = [part for part in mounted if part not in visible]
    is_wrong = bool(hidden) or any(part not in mounted for part in step.parts)
    if is_wrong and mounted:
        # First unmount the mounts that hide others. Only after that can the paths of the hidden mounts be used.
        for part in (*reversed(visible), *hidden):
            datasets.unmount(part.place)
    mounting.mount_all((part.place for part in step.parts), {part.place: part.mountpoint for part in step.parts})


def _replaced_origin(plan: RestorePlan, step: Promote) -> SourceServer:
    """Return the old server's facts from the plan alone. Reading the store would prolong the server's downtime."""
    recovered = next(step for step in plan.steps if isinstance(step, Recover))
    return SourceServer(
        flavour=plan.flavour,
        version=plan.server_version,
        server_uuid=plan.server_uuid,
        server_id=plan.server_id,
        variables=dict(plan.variables),
        volumes={part.role: Place(dataset=part.place, mountpoint=part.mountpoint) for part in step.parts},
        key_files=plan.key_files,
        plugins=plan.plugins,
        zone=plan.zone,
        # The plan does not say which of the backup's GTIDs were in no binlog. So all its GTIDs are listed as such,
        # because every copy of the backup contains their transactions.
        unlogged=recovered.gtids if family(plan.flavour).gtids_are_sets else None,
    )


def _take_over_snapshots(plan: RestorePlan, part: PromotePart) -> None:
    """Remove this restore's snapshots from the volume.

    A received volume keeps no snapshot, so the next backup is a full backup and contains only the new history. A volume
    that is a clone of an old dataset is promoted, so that the old dataset depends on the clone and can be destroyed.
    The promotion moves all snapshots up to the cloned one to the clone, so the next backup is an increment
    (zfs-promote(8)). The moved snapshots are never destroyed: if an interrupted run already promoted the clone, the
    clone is not changed again.
    """
    cloned = next((step for step in plan.clones if step.role == part.role), None)
    if cloned is None:
        destruction.destroy_snapshots_of(part.place, restored_mark(plan))
        return
    origin = datasets.properties(part.place, ["origin"])["origin"].value
    if origin == f"{part.old}@{cloned.origin.partition('@')[2]}":
        destruction.destroy_snapshots_of(part.place, restored_mark(plan))
        datasets.promote(part.place)
