"""Stores existing local snapshot sets in the repository.

zsnapdb does this after an outage of the store, or for `zsnapdb backup --set`, which works even if the server is down.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import NotFound, PreflightError, UnreachableError, ZsnapdbError
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.backup.hooks import DoneHooks
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.source_interface import Observation, SourceDescription, SourceOpener, take
from zsnapdb.jobs.base import instance_snapshots
from zsnapdb.jobs.base.events import KeptWarnings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_server_work
from zsnapdb.jobs.base.snapshot_set_properties import BASE_TAG, LOCAL, STATE_PROPERTY, TAKEN
from zsnapdb.jobs.host.local_snapshot_sets import local_sets, require_whole
from zsnapdb.planning.backup.fitness import FitnessFinding, warnings
from zsnapdb.zfs import holds, snapshots


@dataclass(frozen=True)
class OutageSnapshot:
    """A proved snapshot set that is not stored yet.

    The field `created` is the time of the proof. The creation of the set took `seconds`.

    The field `instance` contains the instance of the set, with its volumes.
    """

    instance: Instance
    observed: Observation
    described: SourceDescription
    set: SnapshotSet
    created: datetime
    seconds: float

    @property
    def names(self) -> list[str]:
        return [snapshot.full_name for snapshot in self.set.snapshots.values()]

    def spare(self) -> None:
        """Put a hold on the set, so that local retention keeps it.

        If this run is killed, the next run releases the hold.
        """
        with instance_snapshots.changing_sets(self.instance, self.instance.volumes.values()):
            holds.ensure_held(self.names, BASE_TAG)

    def becomes_backup(self) -> None:
        """Mark the set as the set of a backup that is not stored yet. The caller writes the journal next.

        Until the journal is written, the manifest of the local set is kept. If this run is killed, the manifest tells
        the next run that the set was local.
        """
        with instance_snapshots.changing_sets(self.instance, self.instance.volumes.values()):
            holds.ensure_held(self.names, holds.HOLD_TAG)
            snapshots.set_on(self.names, {STATE_PROPERTY: TAKEN})
        # Only this hold protects the set while it is local, so it is released last. The next run releases remaining
        # holds.
        with contextlib.suppress(ZsnapdbError):
            holds.release(self.names, BASE_TAG)

    def stays_local(self) -> None:
        """Turn the set back into a local set, so that it is kept although its backup failed."""
        snapshots.set_on(self.names, {STATE_PROPERTY: LOCAL})
        local_snapshot.write(self.instance, self.described, self.set, self.created)
        holds.release(self.names)


def store_is_away(instance: Instance) -> UnreachableError | None:
    """Return the error if the store cannot be reached even after some seconds of retries; else None.

    Other errors are raised.
    """
    try:
        instance.open_store()[0].check()
    except UnreachableError as error:
        return error
    return None


def snapshot_during_outage(
    instance: Instance, events: KeptWarnings, opener: SourceOpener, done: DoneHooks, outage: UnreachableError
) -> OutageSnapshot:
    """Create the snapshot set of a backup whose store is unreachable.

    Raises:
        UnreachableError: no set on this host is stored yet, so the store's address may be wrong. The raised error is
            `outage`.
    """
    with opener(instance) as source:
        with lock_server_work(instance):
            recovered = source.recover()
        if recovered is not None:
            events.warn(recovered)
        with at_low_priority():
            observed = source.observe()
        instance = instance.with_volumes(observed.volumes)
        if not local_sets(instance):
            raise outage
        started = time.monotonic()
        backup_id = instance.host.new_backup_id()
        done.begins(backup_id, observed.volumes)
        with lock_server_work(instance):
            taken = take(source, observed, instance.name, backup_id, events, LOCAL, run_id=instance.host.run_id())
        made = OutageSnapshot(
            instance,
            observed,
            source.describe(observed, taken.proof),
            taken.set,
            instance.host.now(),
            time.monotonic() - started,
        )
    local_snapshot.write(instance, made.described, made.set, made.created)
    made.spare()
    return made


@contextlib.contextmanager
def kept_on_error(early: OutageSnapshot) -> Iterator[None]:
    """Run the block. If it fails before the set belongs to a backup, the error gets a note with the id of the set."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(ZsnapdbError):
            holds.release(early.names, BASE_TAG)
        error.add_note(
            f"the snapshot set {early.set.backup_id} of this run stays on this host (`zsnapdb list --local`), and"
            " expires by the rules of [instance.NAME.local]"
        )
        raise


def wait_for_store(instance: Instance, events: KeptWarnings, early: OutageSnapshot, outage: UnreachableError) -> None:
    """Wait until the store can be reached.

    Raises:
        UnreachableError: the store is still unreachable after the repository's `patience`.
    """
    patience = instance.repository.patience
    events.warn(
        f"the store is unreachable ({outage.message}): the snapshots of {early.set.backup_id} exist, and are stored"
        f" if the store returns within {patience:.0f} s"
    )
    deadline = time.monotonic() + patience
    while (error := store_is_away(instance)) is not None:
        if time.monotonic() >= deadline:
            raise error


LATEST = "latest"
"""The argument that stands for the newest local set."""


@dataclass(frozen=True)
class _RecordedSource:
    """The source of an existing set. The source was checked when the set was created, so it is not checked again."""

    volumes: Mapping[str, str]
    ciphers: Mapping[str, str]
    findings: tuple[FitnessFinding, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.findings)

    def with_findings(self, more: Iterable[FitnessFinding]) -> _RecordedSource:
        """Return the observation with more findings at the end."""
        return replace(self, findings=(*self.findings, *more))


def open_set(instance: Instance, requested: str) -> OutageSnapshot:
    """Return the local set with that id, or the newest set for `latest`.

    The set is held, so that local retention keeps it.

    Raises:
        NotFound: this host has no complete set with that id.
        PreflightError: this host has no manifest of the set, or a newer set lacks a volume.
    """
    known = local_snapshot.load(instance)
    if instance.settings.volumes is None and known:
        instance = instance.with_volumes({volume.role: volume.dataset for volume in known[-1].volumes})
    sets = {one.backup_id: one for one in local_sets(instance, LOCAL)}
    name = next(reversed(sets), requested) if requested == LATEST else requested
    if name not in sets:
        raise NotFound(
            f"instance {instance.name} has no local set {requested} on this host",
            hint="`zsnapdb list --local` lists the sets; one with state `local` can be stored",
        )
    if requested == LATEST:
        require_whole(instance, sets[name])
    manifest = next((one for one in known if one.backup_id == name), None)
    if manifest is None:
        raise PreflightError(
            f"nothing on this host describes the server of local set {name}, so no backup can be made of the set",
            hint="run `zsnapdb backup`, which makes a new set",
        )
    made = sets[name]
    described = SourceDescription(manifest.source, {volume.role: volume.type for volume in manifest.volumes})
    ciphers = {one.dataset: one.type.encryption for one in manifest.volumes if one.type.encryption is not None}
    early = OutageSnapshot(instance, _RecordedSource(instance.volumes, ciphers), described, made, manifest.created, 0.0)
    early.spare()
    return early
