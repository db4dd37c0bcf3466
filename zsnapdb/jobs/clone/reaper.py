"""The reaper: clones whose time is up, and what was left behind by runs that died.

It takes nothing that has dependents or cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from zsnapdb.config import Settings
from zsnapdb.errors import ServerError, ZsnapdbError
from zsnapdb.jobs.clock import now
from zsnapdb.jobs.clone import locks, prepared, properties
from zsnapdb.jobs.clone.catalogue import CloneInfo, listing, policy, unreadable
from zsnapdb.jobs.clone.destroy import destroy_held, remove_all, unused_live
from zsnapdb.jobs.clone.lifecycle import session
from zsnapdb.jobs.clone.prepared import PreparedSet
from zsnapdb.jobs.clone.properties import HALF_MADE, ClonePhase
from zsnapdb.jobs.clone.revision import drop_leftovers
from zsnapdb.jobs.clone.sources import commits, with_volumes
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import SnapshotSet
from zsnapdb.mysql.connections import server_use
from zsnapdb.planning.clone.lease import CloneUse, LeaseVerdict, Verdict, judge, read_stamp, stamp
from zsnapdb.zfs import datasets, owned, snapshots


@dataclass(frozen=True)
class Leak:
    """Something that a run which died left behind: what it is, where, and of which instance."""

    what: str
    where: str
    instance: str
    hint: str = "`zsnapdb reap` clears it"


@dataclass(frozen=True)
class ReapOutcome:
    """What a sweep made of one thing: kept or taken, why, and the error if it could not be taken."""

    what: str
    name: str
    verdict: LeaseVerdict
    reason: str
    error: ZsnapdbError | None = None


def leaks(settings: Settings) -> list[Leak]:
    """Return what runs that died left behind; what somebody is at work on is none."""
    hint = "it counts as protected; put the properties right (`zfs get all`), or destroy its datasets by hand"
    found = [
        Leak(f"clone that cannot be read ({item.reason})", item.top, item.instance, hint)
        for item in unreadable(settings)
    ]
    for info in listing(settings):
        with locks.if_free(f"clone-{info.name}") as free:
            found += _leaks_of(info) if free else []
    for item in prepared.listing(settings):
        if item.phase in HALF_MADE:
            with locks.if_free(item.lock) as free:
                found += [Leak(f"half-made {item.kind} set", item.anchor, item.instance)] if free else []
    for instance, made in _unused_live(settings):
        found.append(Leak("snapshot set of no clone", made.backup_id, instance.name))
    return found


def _leaks_of(info: CloneInfo) -> list[Leak]:
    if info.phase in HALF_MADE:
        return [Leak(f"half-made clone ({info.phase})", info.name, info.instance)]
    if info.phase is ClonePhase.CHANGING:
        return [Leak("clone whose reset or detach was cut short", info.name, info.instance)]
    return [Leak("left-over revision of a clone", dataset, info.instance) for dataset in _droppable(info)]


def _droppable(info: CloneInfo) -> list[str]:
    """Return the revisions that no longer count and have no commits."""
    committed = {snapshot.dataset for commit in commits(info.top) for snapshot in commit.set.snapshots.values()}
    tops = sorted({f"{info.top}/{dataset[len(info.top) + 1 :].partition('/')[0]}" for dataset in info.leftovers})
    return [top for top in tops if not any(dataset == top or dataset.startswith(top + "/") for dataset in committed)]


def _unused_live(settings: Settings) -> Iterator[tuple[Instance, SnapshotSet]]:
    """Yield the snapshot sets taken for clones that have none. Each is yielded with its instance's live sets locked."""
    for name in sorted(settings.instance):
        instance = Instance.of(settings, name)
        with locks.if_free(f"live-{name}") as free:
            if not free:
                continue
            try:
                instance = with_volumes(instance)
                if not all(datasets.exists(dataset) for dataset in instance.volumes.values()):
                    continue
                found = unused_live(instance)
            except ZsnapdbError:
                # Neither configured nor to be asked for: nothing is known of it, so nothing is taken.
                continue
            for made in found:
                yield instance, made


def plan(settings: Settings) -> list[ReapOutcome]:
    """Return what `reap` would do now; changes nothing but the note of when a clone was last seen in use."""
    return list(_sweep(settings, now(), act=False))


def reap(settings: Settings) -> list[ReapOutcome]:
    """Clear what died left behind, then take clones whose time is up, at most `clones.reap_limit` of them.

    Each is judged again with its lock held, on what its datasets say at that moment: one being extended, committed or
    reset is passed over or found changed. An error with one does not keep the others.
    """
    return list(_sweep(settings, now(), act=True))


def _sweep(settings: Settings, moment: datetime, *, act: bool) -> Iterator[ReapOutcome]:
    taken = 0
    limit = settings.clones.reap_limit
    for known in listing(settings):
        with locks.if_free(f"clone-{known.name}") as free:
            if not free:
                yield ReapOutcome("clone", known.name, LeaseVerdict.KEEP, "somebody is working on it")
                continue
            info = next((info for info in listing(settings) if info.name == known.name), None)
            if info is None:
                continue
            done = _sweep_clone(settings, info, moment, act=act, room=taken < limit)
            taken += done.verdict is LeaseVerdict.REAP
            yield done
    for item in prepared.listing(settings):
        with locks.if_free(item.lock) as free:
            if free:
                yield _sweep_kept(settings, item, moment, act=act)
    # After the half-made clones, whose sets have none then.
    yield from _sweep_live(settings, act=act)


def _sweep_clone(settings: Settings, info: CloneInfo, moment: datetime, *, act: bool, room: bool) -> ReapOutcome:
    """Judge one clone, its lock being held, and do what follows."""
    if info.phase in HALF_MADE:
        return _done(
            ReapOutcome("clone", info.name, LeaseVerdict.REAP, f"half made ({info.phase})"),
            act,
            lambda: remove_all(info.top, info.name, info.mount),
        )
    if info.phase is ClonePhase.CHANGING or _droppable(info):
        error = _mend(info) if act else None
        if error is not None:
            return ReapOutcome("clone", info.name, LeaseVerdict.KEEP, "its reset or detach was cut short", error)
    verdict = _verdict(settings, info, moment, notes=act)
    if verdict.verdict is LeaseVerdict.REAP and not room:
        verdict = Verdict(
            LeaseVerdict.KEEP,
            f"{verdict.reason}; the next sweep takes it, {settings.clones.reap_limit} are enough for one",
        )
    return _done(
        ReapOutcome("clone", info.name, verdict.verdict, verdict.reason), act, lambda: destroy_held(settings, info.name)
    )


def _mend(info: CloneInfo) -> ZsnapdbError | None:
    """Make a clone whole whose reset or detach was cut short before the new revision counted: it is the old one."""
    try:
        drop_leftovers(info)
        if info.phase is ClonePhase.CHANGING:
            datasets.set_properties(info.top, {properties.PHASE_PROPERTY: ClonePhase.READY})
    except ZsnapdbError as error:
        return error
    return None


def _verdict(settings: Settings, info: CloneInfo, moment: datetime, *, notes: bool) -> Verdict:
    dependents = len(commits(info.top)) + sum(
        1 for values in snapshots.below(info.top, ("clones",)).values() if values["clones"].value not in ("", "-")
    )
    return judge(info.lease, dependents, use_of(info, moment, notes=notes), policy(settings.clones), moment)


def use_of(info: CloneInfo, moment: datetime, *, notes: bool = False) -> CloneUse:
    """Return what is known of the clone's use: who is connected, and since when nobody has been, as far as sweeps have seen.

    `notes`: leave a note on it for the next sweep, of the time and of how many connections its server has had.
    """
    since, _, counted = info.used.partition(" ")
    if info.pid is None:
        return CloneUse(0, read_stamp(since) if since != datasets.UNSET else None)
    try:
        with session(info) as opened:
            use = server_use(opened)
    except ServerError:
        return CloneUse(None, None)
    # The one new connection since the last note is this one.
    unused = not use.clients and counted.isdigit() and use.connections == int(counted) + 1
    idle_since = read_stamp(since) if unused else moment
    if notes:
        datasets.set_properties(info.top, {properties.USED_PROPERTY: f"{stamp(idle_since)} {use.connections}"})
    return CloneUse(use.clients, idle_since)


def _sweep_kept(settings: Settings, item: PreparedSet, moment: datetime, *, act: bool) -> ReapOutcome:
    what = f"{item.kind} set"
    if item.phase in HALF_MADE:
        return _done(ReapOutcome(what, item.set_id, LeaseVerdict.REAP, "half made"), act, lambda: prepared.remove(item))
    if item.clones:
        return ReapOutcome(what, item.set_id, LeaseVerdict.KEEP, f"{len(item.clones)} clones need it")
    if moment - read_stamp(item.used) < timedelta(seconds=settings.clones.keep_unused):
        return ReapOutcome(what, item.set_id, LeaseVerdict.KEEP, f"last used at {item.used}")
    return _done(
        ReapOutcome(what, item.set_id, LeaseVerdict.REAP, f"not used since {item.used}"),
        act,
        lambda: prepared.remove(item),
    )


def _sweep_live(settings: Settings, *, act: bool) -> Iterator[ReapOutcome]:
    for _, made in _unused_live(settings):
        names = [snapshot.full_name for snapshot in made.snapshots.values()]
        found = ReapOutcome("live set", made.backup_id, LeaseVerdict.REAP, "it was taken for a clone and has none")
        yield _done(found, act, partial(owned.destroy_set, names, made.backup_id))


def _done(found: ReapOutcome, act: bool, take: Callable[[], object]) -> ReapOutcome:
    """Take what is to be taken, if this is no plan; an error is kept with it."""
    if not act or found.verdict is not LeaseVerdict.REAP:
        return found
    try:
        take()
    except ZsnapdbError as error:
        return replace(found, verdict=LeaseVerdict.KEEP, error=error)
    return found
