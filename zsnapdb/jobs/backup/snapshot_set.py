"""Makes one consistent snapshot set of a source.

Hold the source still, make all snapshots in one request, let the source go, prove the set. A set without a proof is
removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from zsnapdb.base.model import SnapshotSet
from zsnapdb.jobs.backup.low_priority import (
    at_low_priority,
)
from zsnapdb.jobs.backup.source import H, O, P, SnapshotRequest, Source
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.interruption import undone_on_error
from zsnapdb.jobs.base.set_properties import BASE_TAG, TAKEN
from zsnapdb.zfs import holds, snapshots


@dataclass(frozen=True)
class Taken(Generic[P]):
    """A snapshot set, and what its source proved of the set. `holds_bases`: whether what it is sent from is held."""

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
) -> Taken[P]:
    """Make the snapshot set `backup_id` of the source of an instance, and prove the set.

    The request marks the snapshots with `state`. Afterwards those that a backup is made of are held and bookmarked, so
    that the next increment is possible even if they are removed, and the snapshots `bases` that it is sent from are
    held; others need no hold, as ZFS destroys no snapshot that has clones. On an error the snapshots are removed. The
    errors are those of the source; ConsistencyError if the snapshots are not of one transaction group.
    """
    request = SnapshotRequest(instance, backup_id, dict(observed.volumes), state, run_id)
    with undone_on_error(request.withdraw):
        hold = source.hold(observed, request, events)
        with at_low_priority():
            made = request.made()
            proof = source.prove(observed, hold, made)
            if state != TAKEN:
                snapshots.set_on(request.names, proof.properties)
                return Taken(made, proof)
            return Taken(made, proof, holds.keep(request.names, proof.properties, dict.fromkeys(bases, BASE_TAG)))
