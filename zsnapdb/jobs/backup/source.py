"""The seam between the engine of backups and what is backed up.

A source is what is held still for a snapshot, and how its position is proved: a database server on filesystems of this
host (`server_source.py`), and others. The engine knows the phases below, in this order, and nothing of what a source
does in them. The engine's own business is the snapshot set, the streams, the chain, and the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from zsnapdb import __version__
from zsnapdb.jobs.events import Events
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    STATE_PROPERTY,
    VERSION_PROPERTY,
    snapshot_name,
)
from zsnapdb.model import SnapshotSet
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.repository.manifest import SourcePart, VolumeType
from zsnapdb.zfs import owned, snapshots


class Observation(Protocol):
    """What was found of a source that is fit for a backup: every check, and its volumes, role to dataset."""

    @property
    def findings(self) -> tuple[FitnessFinding, ...]: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def volumes(self) -> Mapping[str, str]: ...
    def with_findings(self, more: Iterable[FitnessFinding]) -> Observation:
        """Return it with more findings at the end."""


class Proof(Protocol):
    """What is known of a snapshot set that was proved; `properties` are set on its snapshots then."""

    @property
    def properties(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class SourceDescription:
    """What the manifest says of the source, and of each volume by role."""

    source: SourcePart
    volumes: Mapping[str, VolumeType]


@dataclass(frozen=True)
class SnapshotRequest:
    """The one request that makes the snapshots of all volumes; `state` is what the set is marked as from then on."""

    instance: str
    backup_id: str
    volumes: Mapping[str, str]
    state: str

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the snapshots, in the order of their roles."""
        short = snapshot_name(self.backup_id)
        return tuple(f"{dataset}@{short}" for _, dataset in sorted(self.volumes.items()))

    def prepare(self, properties: Mapping[str, str]) -> snapshots.PendingSnapshots:
        """Return the request, ready to be started without any delay, with the properties of the source and our own."""
        own = {
            BACKUP_PROPERTY: self.backup_id,
            INSTANCE_PROPERTY: self.instance,
            STATE_PROPERTY: self.state,
            VERSION_PROPERTY: __version__,
        }
        return snapshots.PendingSnapshots.of(self.names, {**properties, **own})

    def withdraw(self) -> None:
        """Destroy what the request made, so that it can be made again. Can be repeated."""
        owned.destroy_set(list(self.names), self.backup_id)

    def made(self) -> SnapshotSet:
        """Return the set that was made. ConsistencyError if its snapshots are not of one transaction group."""
        found = snapshots.describe(list(self.names))
        snapshots.check_one_group(found)
        return SnapshotSet(self.backup_id, dict(zip(sorted(self.volumes), found, strict=True)))


O = TypeVar("O", bound=Observation)  # noqa: E741
H = TypeVar("H")
P = TypeVar("P", bound=Proof)


class Source(Protocol[O, H, P]):
    """A source that is open for one backup.

    What it observed, how it was held and what it proved are passed from phase to phase.
    """

    def recover(self) -> str | None:
        """Undo what a killed run left on the source. Return what was done, for a warning; None if there was nothing."""

    def observe(self) -> O:
        """Look at the source; changes nothing. PreflightError with every objection if it is not fit for a backup."""

    def hold(self, observed: O, request: SnapshotRequest, events: Events) -> H:
        """Hold the source still, make the request, and let the source go; afterwards the snapshots are made.

        The request is prepared before anything is held, and started while the source is still. How the source is held,
        for how long at most, which hooks run, and whether it is tried again (after `request.withdraw`, if snapshots
        were made) is up to the source. Nothing stays held, whatever happens. On an error the engine withdraws the
        request.
        """

    def prove(self, observed: O, held: H, made: SnapshotSet) -> P:
        """Return what is proved of the set, such as its position. ConsistencyError if it is not what it has to be."""

    def describe(self, observed: O, proof: P) -> SourceDescription:
        """Return what the manifest says of source and volumes. The source may be closed by then."""


AnySource = Source[Any, Any, Any]

SourceOpener = Callable[[Instance], AbstractContextManager[AnySource]]
"""Opens the source of an instance. ServerError, or another typed error, if it cannot be reached."""
