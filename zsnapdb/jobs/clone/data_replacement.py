"""Replaces the data of a clone. The clone's name, port, credentials and lease stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, undone_on_error, uninterrupted
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import snapshot_name
from zsnapdb.jobs.clone import (
    cached_sets,
    clone_info,
    credentials,
    kept_ports,
    locks,
    masking_requirement,
    space_limits,
    volumes,
)
from zsnapdb.jobs.clone.catalogue import home, of_dataset
from zsnapdb.jobs.clone.clone_info import CLONE_PROPERTY, CloneInfo
from zsnapdb.jobs.clone.commits import branches_to_keep
from zsnapdb.jobs.clone.destroy import drop_live, drop_unused_live
from zsnapdb.jobs.clone.lifecycle import start_locked
from zsnapdb.jobs.clone.source_lookup import bring_here, locate, take_back_hint, take_live
from zsnapdb.jobs.clone.sources import LIVE_STATE, CloneSource, Commit, RemoteBackup, commits, with_volumes
from zsnapdb.jobs.clone.volumes import begin_change, drop_leftovers, hide_volumes, next_number, undo_change
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.dataset_copies.property_fields import PropertyTransition
from zsnapdb.planning.clone.branches import Branches
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.zfs import datasets, snapshots


@dataclass(frozen=True)
class ResetPlan:
    """The plan of a reset: the clone, and for each role the snapshot with the new data.

    `snapshots` is empty if the snapshots must be created or received first. `is_original` is set if the clone was
    created from the new data. `drops` is the live set that is removed together with the old data, or "" if there is
    none. A live set that another clone uses is not removed.
    """

    info: CloneInfo
    set_id: str
    snapshots: Mapping[str, str]
    is_original: bool
    drops: str


def plan(settings: Settings, host: Host, info: CloneInfo, requested: str | None, *, accepts_older: bool) -> ResetPlan:
    """Return the plan of `replace_data`; change nothing."""
    quota_beside(settings, info)
    live = info.backup_id if info.source == SourceKind.LIVE else ""
    if requested == LIVE_STATE:
        return ResetPlan(info, "", {}, is_original=False, drops=live)
    source: CloneSource | RemoteBackup
    if requested is None:
        source = _original(settings, host, info)
    else:
        instance = with_volumes(Instance.of(settings, info.instance).on_host(host))
        rules = masking_requirement.rules_of_clone(settings, info)
        source = locate(settings, instance, requested, rules, accepts_older=accepts_older)
    space_limits.refuse_source(settings, info.top.rpartition("/")[0], source)
    if isinstance(source, CloneSource):
        cached_sets.begun_after(settings, host, info, source)
    set_id = source.manifest.backup_id if isinstance(source, RemoteBackup) else source.set.backup_id
    is_original = source.key == info.original_key or (
        not info.original_key and set_id == info.original.removeprefix("@")
    )
    made = {} if isinstance(source, RemoteBackup) else source.set.snapshots
    names = {role: snapshot.full_name for role, snapshot in made.items()}
    drops = live if live != set_id else ""
    return ResetPlan(info, set_id, names, is_original=is_original, drops=drops)


def _original(settings: Settings, host: Host, info: CloneInfo) -> CloneSource | RemoteBackup:
    """Return the snapshot set from which the clone was created, even if the clone's data now comes from another set.

    If the clone must be masked, and a copy of that set was masked by the current rules, return the copy.

    Raises:
        PreflightError: the set is neither on this host nor in the repository.
    """
    rules, here = masking_requirement.rules_of_clone(settings, info), _here(info)
    if here is not None:
        if not rules or masking_requirement.are_masked(here.names, rules):
            return here
        masked = cached_sets.prepared_form(home(settings, here.pool), here, rules)
        if masked.rules:
            return masked
        if not masking_requirement.have_rules(here.names):
            return here
    # If the data was masked by other rules, the unmasked source is masked again.
    instance = with_volumes(Instance.of(settings, info.instance).on_host(host))
    try:
        return _require_same_source(info, locate(settings, instance, info.original, rules))
    except NotFound as error:
        raise PreflightError(
            f"clone {info.label} was created from the snapshot set {info.original}, which does not exist any more",
            hint="choose another snapshot set with --from"
            + take_back_hint([name for name in instance.volumes.values() if datasets.exists(name)]),
            about=(info.owner,),
        ) from error


def _require_same_source(info: CloneInfo, found: CloneSource | RemoteBackup) -> CloneSource | RemoteBackup:
    """Return the source `found` if it is the set from which the clone was created, and not a new set with its name.

    Another program may have renamed the set's snapshots and reused the name. Older versions of zsnapdb did not record
    the identity of the set.

    Raises:
        PreflightError: the source may be another set.
    """
    if info.original_key != found.key and (info.original_key or info.original.startswith("@")):
        raise PreflightError(
            f"clone {info.label} was created from {info.original}, but the object that now has this name may be"
            f" another one",
            hint=f"`--from {info.original}` uses the object that now has this name",
        )
    return found


def _here(info: CloneInfo) -> CloneSource | None:
    """Return the origin of the clone's datasets if it is the set from which the clone was created, else None."""
    names = info.origins
    if not names or not all("@" in name for name in names.values()):
        return None
    described = dict(zip(names, snapshots.describe(list(names.values())), strict=True))
    prepared_of = _prepared_of(names.values())
    source = CloneSource(
        SourceKind(info.source), SnapshotSet(info.backup_id, described), info.origin, prepared_of=prepared_of
    )
    if info.original_key:
        return source if source.key == info.original_key else None
    short = info.original[1:] if info.original.startswith("@") else snapshot_name(info.original)
    return source if all(name.partition("@")[2] == short for name in names.values()) else None


def _prepared_of(names: Iterable[str]) -> str:
    """Return the identity of the unmasked source from which these snapshots were prepared; "" if not recorded."""
    seen = datasets.properties_of(list(names), [clone_info.KEY_PROPERTY])
    keys = {values[clone_info.KEY_PROPERTY] for values in seen.values()}
    recorded = keys.pop()
    return recorded.value if recorded.is_local and not keys else ""


def replace_data(
    settings: Settings, host: Host, info: CloneInfo, requested: str | None, events: Events, *, accepts_older: bool
) -> CloneInfo:
    """Replace the data of the clone. The caller must hold the clone's lock."""
    # Check the clone's quota before receiving new data.
    quota_beside(settings, info)
    if requested != LIVE_STATE:
        with (
            undone_on_error(
                lambda: cached_sets.drop_unused_of_subjects(settings, info.instance, SourceKind.REPOSITORY)
            ),
            locks.using_received(info.instance),
        ):
            source = _source(settings, host, info, requested, events, accepts_older=accepts_older)
            begun = cached_sets.begun_after(settings, host, info, source)
            made = commits(info.current)
            revision = _clone_beside(settings, info, source, made)
    else:
        instance = with_volumes(Instance.of(settings, info.instance, events).on_host(host))
        with locks.lock_live_sets(instance.name):
            made, source = commits(info.current), take_live(instance)
            with undone_on_error(lambda: drop_live(source)):
                begun = cached_sets.begun_after(settings, host, info, source)
                revision = _clone_beside(settings, info, source, made)
    kept = branches_to_keep(info, made)
    return _replace_data(settings, host, info, source, revision, requested, events, kept, begun)


def _source(
    settings: Settings, host: Host, info: CloneInfo, requested: str | None, events: Events, *, accepts_older: bool
) -> CloneSource:
    if requested is None:
        source = _original(settings, host, info)
        if isinstance(source, CloneSource):
            return source
        return bring_here(settings, with_volumes(Instance.of(settings, info.instance, events).on_host(host)), source)
    instance = with_volumes(Instance.of(settings, info.instance, events).on_host(host))
    rules = masking_requirement.rules_of_clone(settings, info)
    return bring_here(settings, instance, locate(settings, instance, requested, rules, accepts_older=accepts_older))


def _clone_beside(settings: Settings, info: CloneInfo, source: CloneSource, made: Sequence[Commit]) -> int:
    """Clone the source as a new, unmounted revision next to the current revision; return its number.

    The quota of the clone stays the same. `made` contains the commits of the old data. If there are no commits, the old
    data will be removed, so it does not count towards the quota. So even a clone without free space can be reset.
    """
    quota = space_limits.of_other_data(settings, info, keeps_data=bool(made))
    revision = next_number(info)
    # Each revision has a quota of its own, so nothing may stay of earlier resets that were interrupted.
    if info.leftovers:
        drop_leftovers(info)
    begin_change(info)
    layout = volumes.layout_of(source.origin, f"{info.top}/r{revision}", info.mount)
    with undone_on_error(lambda: undo_change(info, revision)):
        volumes.clone_volumes(source, layout, {CLONE_PROPERTY: info.name}, quota)
    return revision


def quota_beside(settings: Settings, info: CloneInfo, *, is_committed: bool = False) -> int:
    """Return the quota in bytes of the revision with the clone's new data.

    `is_committed` is set if the present data will be committed first. Raises the errors of
    `space_limits.of_other_data`.
    """
    return space_limits.of_other_data(settings, info, keeps_data=is_committed or bool(commits(info.current)))


def put_data(
    settings: Settings, host: Host, info: CloneInfo, source: CloneSource, known: Branches, events: Events
) -> CloneInfo:
    """Replace the clone's data with the data of `source`, and record the given branches.

    The caller must hold the clone's lock.
    """
    revision = _clone_beside(settings, info, source, commits(info.current))
    of, branches = f"branch {known.current}", known.encode()
    begun = cached_sets.begun_after(settings, host, info, source)
    return _replace_data(settings, host, info, source, revision, of, events, branches, begun)


def _replace_data(
    settings: Settings,
    host: Host,
    info: CloneInfo,
    source: CloneSource,
    revision: int,
    requested: str | None,
    events: Events,
    branches: str,
    begun: str,
) -> CloneInfo:
    """Make the new revision the current one, start its server, and remove the old revision.

    If the function is interrupted before the server has started, the clone already has the new data. The next start of
    the clone completes the replacement, and removes the old data. `branches` contains the clone's branches after the
    replacement. `begun` is the time since which subjects have kept the data.
    """
    password = credentials.read(info.client_file)
    new = replace(
        info,
        revision=revision,
        phase=CopyPhase.NEW,
        backup_id=source.set.backup_id,
        key=source.key,
        source=source.kind,
        requested=clone_info.requested_text(requested or info.original_request),
        origin=source.origin,
        begun=begun,
        branches=branches,
    )
    with uninterrupted(events.warn):
        info.process.kill()
        hide_volumes(info)
        datasets.set_properties(info.top, property_fields.changed_by("reset", new, PropertyTransition.TAKEN))
        changed = of_dataset(settings, host, info.name)
    try:
        start_locked(settings, host, changed, password)
    except BaseException as error:
        error.add_note(
            f"clone {info.label} has its new data but is not started; run `zsnapdb clone start {info.label}`"
        )
        raise
    datasets.set_on_all(list(changed.volumes.values()), {"canmount": "on"})
    volumes.warn_of_kept(drop_leftovers(changed), info.name, events)
    if info.source == SourceKind.LIVE:
        drop_unused_live(with_volumes(Instance.of(settings, info.instance).on_host(host)), info.backup_id)
    cached_sets.drop_unused_of_subjects(settings, info.instance, info.source)
    return kept_ports.open_to(settings, of_dataset(settings, host, info.name), events)
