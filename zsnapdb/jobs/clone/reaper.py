"""The reaper removes expired clones and leftovers of killed runs.

If the server of a clone runs but does not report its connected clients, the reaper keeps the clone. It also removes
expired clones that have commits. The commits are destroyed, or handed over to the clones that were created from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial

from zsnapdb.base.domain_types import SnapshotSet, pool_of
from zsnapdb.base.errors import PreflightError, ServerError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import if_free
from zsnapdb.jobs.clone import cached_sets, catalogue, clone_info, kept_ports, locks, space_limits, volumes
from zsnapdb.jobs.clone.cached_sets import PREPARED, RECEIVED, ReusableSet
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.destroy import destroy_locked, plan_removal, remove_all, unused_live
from zsnapdb.jobs.clone.lifecycle import session
from zsnapdb.jobs.clone.sources import commits, with_volumes
from zsnapdb.jobs.clone.volumes import revert_interrupted_change
from zsnapdb.jobs.dataset_copies import sweep
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies
from zsnapdb.jobs.dataset_copies.properties import HALF_MADE, CopyPhase
from zsnapdb.jobs.dataset_copies.sweep import CopyKind, ExtraRemoval, Leak, ReapOutcome, carried_out
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.host.dataset_use_checks import ReplacedServer
from zsnapdb.jobs.steps import restore_journal
from zsnapdb.jobs.steps.restore_journal import Journals
from zsnapdb.mysql.accounts import server_use
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.lease import (
    FOREVER,
    CloneUse,
    JudgedLease,
    LeaseVerdict,
    judge,
    judge_at,
    policy,
    read_stamp,
    stamp,
)
from zsnapdb.planning.clone.masking import UnusedSet, judge_set
from zsnapdb.zfs import datasets, destruction


def leaks(settings: Settings, host: Host, known: KnownCopies[CloneInfo]) -> list[Leak]:
    """Return the leftovers of killed runs. A dataset that another process is using is not a leftover.

    `known` are the clones on this host, which the caller has just read.
    """
    time = removal_time(host)
    result = list(sweep.leaks(replace(_clones(settings, host, time, act=False), known=lambda: known)))
    for kind in (RECEIVED, PREPARED):
        result += sweep.leaks(_reusable_sets(settings, kind, time, act=False))
    for instance, live in _unused_live(settings, host):
        result.append(Leak("live set without a clone", live.backup_id, instance.name))
    return result


def _leaks_of(info: CloneInfo) -> list[Leak]:
    if info.phase in HALF_MADE:
        return [Leak(f"half-made clone (phase {info.phase})", info.name, info.instance)]
    if _is_abandoned(info):
        return [Leak("clone of a command that was killed", info.name, info.instance)]
    if info.phase is CopyPhase.CHANGING:
        return [Leak("clone whose reset or detach was interrupted", info.name, info.instance)]
    return [Leak("old revision of a clone", dataset, info.instance) for dataset in _droppable(info)]


def _droppable(info: CloneInfo) -> list[str]:
    if not info.leftovers:
        return []
    committed = {snapshot.dataset for commit in commits(info.top) for snapshot in commit.set.snapshots.values()}
    tops = sorted({f"{info.top}/{dataset[len(info.top) + 1 :].partition('/')[0]}" for dataset in info.leftovers})
    return [top for top in tops if not any(dataset == top or dataset.startswith(top + "/") for dataset in committed)]


def _unused_live(settings: Settings, host: Host) -> Iterator[tuple[Instance, SnapshotSet]]:
    """Yield the live sets that have no clones, under the lock of the instance's live sets."""
    for name in sorted(settings.instance):
        instance = Instance.of(settings, name).on_host(host)
        with if_free(f"live-{name}") as free:
            if not free:
                continue
            try:
                instance = with_volumes(instance)
                if not all(datasets.exists(dataset) for dataset in instance.volumes.values()):
                    continue
                unused = unused_live(instance)
            except ZsnapdbError:
                # Remove no live set of this instance, because its volumes are unknown: they are not configured, and the
                # server did not report them.
                continue
            for live in unused:
                yield instance, live


def plan(settings: Settings, host: Host) -> list[ReapOutcome]:
    """Return the actions that `reap` would perform now; change nothing."""
    return list(_sweep(settings, host, removal_time(host), act=False))


def reap(
    settings: Settings,
    host: Host,
    also: Collection[ExtraRemoval] = (),
    removed: Callable[[ReapOutcome], None] = lambda _: None,
) -> list[ReapOutcome]:
    """Remove the leftovers of killed runs, and at most `clones.reap_limit` expired clones in one sweep.

    The properties of each clone are read and checked under the clone's lock. A clone that another process is changing
    is skipped. If an error occurs with one clone, the sweep still continues with the other clones. A clone stays if
    other programs created snapshots of it, unless `also` allows their removal. `removed` is called after each removal.
    """
    outcomes = []
    for outcome in _sweep(settings, host, removal_time(host), act=True, also=also):
        outcomes.append(outcome)
        if outcome.goes:
            removed(outcome)
    space_limits.guard(settings)
    kept_ports.follow_if_there(settings, host)
    return outcomes


def _sweep(
    settings: Settings, host: Host, time: RemovalTime, *, act: bool, also: Collection[ExtraRemoval] = ()
) -> Iterator[ReapOutcome]:
    clones = _clones(settings, host, time, act=act, also=also)
    yield from sweep.sweep(clones, act=act, limit=settings.clones.reap_limit)
    for kind in (RECEIVED, PREPARED):
        yield from sweep.sweep(_reusable_sets(settings, kind, time, act=act), act=act)
    # Remove these sets last, because their last clones may just have been removed.
    yield from _sweep_live(settings, host, act=act)
    yield from _sweep_replaced(settings, host, time, act=act)


def _clones(
    settings: Settings, host: Host, time: RemovalTime, *, act: bool, also: Collection[ExtraRemoval] = ()
) -> CopyKind[CloneInfo]:
    return CopyKind[CloneInfo](
        what="clone",
        known=lambda: catalogue.known_clones(settings, host),
        again=lambda info: catalogue.reread_clone(settings, host, info.name),
        lock=lambda info: locks.name_of_clone(info.name),
        leaks=_leaks_of,
        judge=lambda info: _judge_clone(settings, info, time, act=act, also=also),
        remove=lambda info: _remove_clone(settings, host, info, also),
        instance=lambda info: info.instance,
    )


def _reusable_sets(settings: Settings, kind: str, time: RemovalTime, *, act: bool) -> CopyKind[ReusableSet]:
    return CopyKind[ReusableSet](
        what=f"{kind} set",
        known=lambda: cached_sets.known_sets(settings, kind),
        lock=lambda item: item.lock,
        leaks=lambda item: (
            [Leak(f"half-made {kind} set", item.anchor, item.instance)] if item.phase in HALF_MADE else []
        ),
        judge=lambda item: _judge_reusable_set(settings, item, time, act=act),
        remove=cached_sets.remove_unused,
    )


def _judge_clone(
    settings: Settings, info: CloneInfo, time: RemovalTime, *, act: bool, also: Collection[ExtraRemoval]
) -> JudgedLease:
    """Decide whether to remove a clone. The caller must hold the lock of the clone.

    If `act` is set, also repair the clone if needed, and record for the next sweep whether the clone is in use.
    """
    if info.phase in HALF_MADE:
        return JudgedLease.leak(f"half made (phase {info.phase})")
    if _is_abandoned(info):
        return JudgedLease.leak("the command that created it for its own use has ended")
    if info.is_of_nobody and not info.waits and not info.lease.is_protected(time.at):
        return JudgedLease(LeaseVerdict.REAP, "it can no longer be taken from its pool")
    for revision in info.takes_over if act else ():
        catalogue.settle_adopted_commits(revision)
    info = cached_sets.settle(info, time) if act else cached_sets.settled(info, time)
    old = _droppable(info)
    if info.phase is CopyPhase.CHANGING or old:
        error = _mend(info, also) if act else None
        if error is not None:
            return JudgedLease(LeaseVerdict.KEEP, "its reset or detach was interrupted", error)
    verdict = _verdict(settings, info, time, notes=act)
    stays = old and verdict.verdict is not LeaseVerdict.REAP
    note = f"; its old data goes: {', '.join(old)}" if stays else ""
    return replace(verdict, reason=f"{verdict.reason}{note}")


def _remove_clone(settings: Settings, host: Host, info: CloneInfo, also: Collection[ExtraRemoval]) -> None:
    beats = info.lease.heartbeat
    if info.phase in HALF_MADE:
        _let_foreign_go(info.top, info.name, also)
        remove_all(host, info.top, info.name, info.mount)
    elif (
        beats is not None
        and beats.is_over(at := removal_time(host).at)
        and not clone_info.heartbeat(host, info.name, beats.every, beats.last).is_over(at)
    ):
        raise PreflightError(f"the holder of clone {info.label} is active again", hint="nothing was removed")
    else:
        destroy_locked(settings, host, info.name, also)


def _is_abandoned(info: CloneInfo) -> bool:
    """Return whether the clone is ephemeral and the command that created it no longer holds its lock.

    In that case the command was killed, or the host crashed.
    """
    if not info.is_ephemeral:
        return False
    with if_free(locks.name_of_maker(info.name)) as is_free:
        return is_free


def _let_foreign_go(top: str, name: str, also: Collection[ExtraRemoval]) -> None:
    volumes.destroy_snapshots(volumes.refuse(top, name, may_go=ExtraRemoval.FOREIGN_SNAPSHOTS in also), name)


def _mend(info: CloneInfo, also: Collection[ExtraRemoval]) -> ZsnapdbError | None:
    """Repair a clone after an interrupted reset or detach: keep its old data and remove the new revision.

    If other programs created snapshots of the new revision, the revision stays, and the returned error names these
    snapshots.
    """
    refused: ZsnapdbError | None = None
    try:
        for top in _droppable(info):
            try:
                _let_foreign_go(top, info.name, also)
            except PreflightError as error:
                refused = error
        revert_interrupted_change(info)
    except ZsnapdbError as error:
        return error
    return refused


def _verdict(settings: Settings, info: CloneInfo, time: RemovalTime, *, notes: bool) -> JudgedLease:
    try:
        obstacles = plan_removal(info.top, info.name).obstacles
    except ZsnapdbError as error:
        obstacles = (error.message,)
    use, limits = use_of(info, time, notes=notes), policy(settings.clones)
    return judge_at(lambda at: judge(info.lease, obstacles, use, limits, at), time)


def use_of(info: CloneInfo, time: RemovalTime, *, notes: bool = False) -> CloneUse:
    """Return the number of connected clients, and the time since which sweeps have found no client.

    If `notes` is set, record this time and the server's connection count for the next sweep.
    """
    if info.is_of_nobody:
        # No user has a login for this clone.
        return CloneUse(0, None)
    since, _, counted = info.used.partition(" ")
    if info.pid is None:
        return CloneUse(0, read_stamp(since) if since != datasets.UNSET else None)
    try:
        with session(info) as opened:
            use = server_use(opened)
    except ServerError:
        return CloneUse(None, None)
    # The session of this sweep is the only new connection since the last record.
    unused = not use.clients and counted.isdecimal() and use.connections == int(counted) + 1
    # Record the later of the two times, so that the record stays valid for later sweeps.
    before = read_stamp(since)
    idle_since = before if unused and not _is_wrong(before, time) else time.latest
    if notes:
        datasets.set_properties(info.top, {clone_info.USED_PROPERTY: f"{stamp(idle_since)} {use.connections}"})
    return CloneUse(use.clients, idle_since)


def _judge_reusable_set(settings: Settings, item: ReusableSet, time: RemovalTime, *, act: bool) -> JudgedLease:
    if item.phase in HALF_MADE:
        return JudgedLease.leak("half made")
    if item.is_of_nobody:
        reason = f"it was received for {item.caused_by}, and no clone depends on it"
        return JudgedLease(LeaseVerdict.REAP, reason)
    if _is_wrong(read_stamp(item.used), time):
        item = replace(item, used=stamp(time.latest))
        if act:
            datasets.set_properties(item.anchor, {clone_info.USED_PROPERTY: item.used})
    unused = UnusedSet(len(item.clones), item.used, item.kind == PREPARED)
    keep, short = settings.clones.keep_unused, space_limits.shortage(settings, pool_of(item.anchor))
    return judge_at(lambda at: judge_set(unused, keep, short, at), time)


def _is_wrong(recorded: datetime, time: RemovalTime) -> bool:
    return recorded != FOREVER and time.is_wrong(recorded)


def _sweep_live(settings: Settings, host: Host, *, act: bool) -> Iterator[ReapOutcome]:
    for _, live in _unused_live(settings, host):
        names = [snapshot.full_name for snapshot in live.snapshots.values()]
        outcome = ReapOutcome(
            "live set", live.backup_id, LeaseVerdict.REAP, "it was taken for a clone and has no clone"
        )
        yield carried_out(outcome, partial(destruction.destroy_set, names, live.backup_id), act=act)


def _sweep_replaced(settings: Settings, host: Host, time: RemovalTime, *, act: bool) -> Iterator[ReapOutcome]:
    for name in sorted(settings.instance):
        try:
            instance = with_volumes(Instance.of(settings, name).on_host(host))
            servers = dataset_use_checks.listing(instance)
        except ZsnapdbError:
            # Remove no replaced server of this instance, because its volumes are unknown: they are not configured, and
            # the server did not report them.
            continue
        for server in servers:
            with if_free(f"rewind-{name}") as free:
                yield _sweep_replaced_server(settings, server, time, act=act and free)


def _sweep_replaced_server(settings: Settings, server: ReplacedServer, time: RemovalTime, *, act: bool) -> ReapOutcome:
    if _is_wrong(server.replaced, time):
        now = time.latest
        server = dataset_use_checks.settle(server, now) if act else replace(server, replaced=now)
    what, since = "replaced server", f"replaced at {stamp(server.replaced)}"
    judged = judge_at(partial(server.judge, settings.restore.keep_replaced), time)
    if judged.verdict is LeaseVerdict.KEEP:
        return ReapOutcome(what, server.restore_id, LeaseVerdict.KEEP, f"{since}; {judged.reason}")
    try:
        under_way = restore_journal.claimed(Journals(settings.restore.journal))
        dataset_use_checks.refuse_replaced_removal(server, under_way)
    except ZsnapdbError as error:
        return ReapOutcome(what, server.restore_id, LeaseVerdict.KEEP, f"{since}; {error.message}")
    outcome = ReapOutcome(what, server.restore_id, LeaseVerdict.REAP, since)
    return carried_out(outcome, partial(dataset_use_checks.remove, server, under_way), act=act)
