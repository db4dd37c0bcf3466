"""The interface between the backup engine and the sources of backups.

A source is a database server on filesystems of this host (`server_source.py`) or a virtual machine (`vm_source.py`).
The engine holds the source during a snapshot, and the source proves its position.

The engine calls the phases of `Source` in the order of their definition. The engine itself handles streams, chains and
the repository.

`take` creates one consistent snapshot set: hold the source, create all snapshots in one request, release the source,
prove the set. A set that is not proved is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from zsnapdb import __version__
from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.base.events import Events, undone_on_error
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    BASE_TAG,
    INSTANCE_PROPERTY,
    RUN_PROPERTY,
    STATE_PROPERTY,
    TAKEN,
    VERSION_PROPERTY,
    snapshot_name,
)
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.repository.manifest import SourcePart, VolumeType
from zsnapdb.zfs import destruction, holds, snapshots


class Observation(Protocol):
    """The observed state of a source that is fit for a backup: all findings, and the dataset of each volume by role.

    The field `ciphers` contains the ciphers of the encrypted datasets.
    """

    @property
    def findings(self) -> tuple[FitnessFinding, ...]: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def volumes(self) -> Mapping[str, str]: ...
    @property
    def ciphers(self) -> Mapping[str, str]: ...
    def with_findings(self, more: Iterable[FitnessFinding]) -> Observation:
        """Return the observation with more findings at the end."""


class Proof(Protocol):
    """A source's proof that a snapshot set is consistent. The engine sets `properties` on the snapshots."""

    @property
    def properties(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class SourceDescription:
    """The manifest's descriptions of the source and of each volume (by role)."""

    source: SourcePart
    volumes: Mapping[str, VolumeType]


@dataclass(frozen=True)
class SnapshotRequest:
    """One request that creates the snapshots of all volumes.

    The properties of the snapshots record `state` and the id of the run.
    """

    instance: str
    backup_id: str
    volumes: Mapping[str, str]
    state: str
    run_id: str

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the snapshots, sorted by role."""
        short = snapshot_name(self.backup_id)
        return tuple(f"{dataset}@{short}" for _, dataset in sorted(self.volumes.items()))

    def prepare(self, properties: Mapping[str, str]) -> snapshots.PendingSnapshots:
        """Return the request with the properties from the source and the engine, ready to start without delay."""
        own = {
            BACKUP_PROPERTY: self.backup_id,
            INSTANCE_PROPERTY: self.instance,
            STATE_PROPERTY: self.state,
            VERSION_PROPERTY: __version__,
            RUN_PROPERTY: self.run_id,
        }
        return snapshots.PendingSnapshots.of(self.names, {**properties, **own})

    def withdraw(self) -> None:
        """Destroy the snapshots of the request, so that the request can be repeated. A second call is harmless."""
        destruction.destroy_set(list(self.names), self.backup_id)

    def made(self) -> SnapshotSet:
        """Return the new snapshot set.

        Raises:
            ConsistencyError: the snapshots are not in one transaction group.
        """
        members = snapshots.describe(list(self.names))
        snapshots.check_one_group(members)
        return SnapshotSet(self.backup_id, dict(zip(sorted(self.volumes), members, strict=True)))


O = TypeVar("O", bound=Observation)  # noqa: E741
H = TypeVar("H")
P = TypeVar("P", bound=Proof)


class Source(Protocol[O, H, P]):
    """A source that is open for one backup.

    Each phase receives the results of the earlier phases: the observation, the hold and the proof.
    """

    def recover(self) -> str | None:
        """Undo the changes that a killed run made to the source.

        Return the text of a warning; None if there was nothing to undo.
        """

    def observe(self) -> O:
        """Check the source; change nothing.

        Raises:
            PreflightError: the source is not fit; the message lists every objection.
        """

    def hold(self, observed: O, request: SnapshotRequest, events: Events) -> H:
        """Prevent changes to the source, start the request, and release the source. Afterwards the snapshots exist.

        The request is prepared before the source is held, and started while the source is held. The source chooses the
        kind of hold, its time limit, the hooks, and the retries. If a failed try created snapshots, the source calls
        `request.withdraw` before the next try. The source is always released, even after an error. On an error the
        engine withdraws the request.
        """

    def prove(self, observed: O, hold: H, made: SnapshotSet) -> P:
        """Return the proof that the set is consistent, such as its position.

        Raises:
            ConsistencyError: the set is not consistent.
        """

    def describe(self, observed: O, proof: P) -> SourceDescription:
        """Return the descriptions of source and volumes for the manifest. The source may already be closed."""


AnySource = Source[Any, Any, Any]
SourceOpener = Callable[[Instance], AbstractContextManager[AnySource]]
"""A function that opens the source of an instance.

Raises ServerError, or another typed error, if the source cannot be reached.
"""


@dataclass(frozen=True)
class ProvedSet(Generic[P]):
    """A snapshot set, and the proof of its source. If `holds_bases` is set, the snapshots of the base are held."""

    set: SnapshotSet
    proof: P
    holds_bases: bool = False


def take(
    source: Source[O, H, P],
    observed: O,
    instance: str,
    backup_id: str,
    events: Events,
    state: str = TAKEN,
    *,
    run_id: str,
    bases: Sequence[str] = (),
) -> ProvedSet[P]:
    """Create the snapshot set `backup_id` of the source of an instance, and prove the set.

    The request marks the snapshots with `state`. Afterwards the snapshots of a backup are held and bookmarked, so that
    the next increment remains possible if the snapshots are removed. The snapshots `bases`, from which the backup is
    sent, are held too. The snapshots of sets that are not backups need no hold. Clones are created from these
    snapshots, and ZFS destroys no snapshot that has clones. After an error, the new snapshots are removed. Errors of
    the source are raised too.

    Raises:
        ConsistencyError: the snapshots are not in one transaction group.
    """
    request = SnapshotRequest(instance, backup_id, dict(observed.volumes), state, run_id)
    with undone_on_error(request.withdraw):
        hold = source.hold(observed, request, events)
        with at_low_priority():
            made = request.made()
            proof = source.prove(observed, hold, made)
            if state != TAKEN:
                snapshots.set_on(request.names, proof.properties)
                return ProvedSet(made, proof)
            return ProvedSet(made, proof, holds.keep(request.names, proof.properties, dict.fromkeys(bases, BASE_TAG)))
