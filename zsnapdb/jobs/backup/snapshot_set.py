"""One consistent snapshot set of a source: hold it still, one request over all volumes, let it go, prove.

Nothing unproved is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from zsnapdb.jobs.backup.low_priority import stepped_back
from zsnapdb.jobs.backup.source import H, O, P, SnapshotRequest, Source
from zsnapdb.jobs.events import Events
from zsnapdb.jobs.set_properties import TAKEN
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import SnapshotSet
from zsnapdb.zfs import snapshots


@dataclass(frozen=True)
class Taken(Generic[P]):
    """A snapshot set, and what its source proved of it."""

    set: SnapshotSet
    proof: P


def take(
    source: Source[O, H, P], observed: O, instance: str, backup_id: str, events: Events, state: str = TAKEN
) -> Taken[P]:
    """Make the snapshot set `backup_id` of the instance's source and prove it.

    On any error its snapshots are gone again.

    `state` is what the set is marked as from the request on. Afterwards the snapshots are held. The errors are those of
    the source; ConsistencyError if the snapshots are not one.
    """
    request = SnapshotRequest(instance, backup_id, dict(observed.volumes), state)
    with undone_on_error(request.withdraw):
        held = source.hold(observed, request, events)
        with stepped_back():
            made = request.made()
            proof = source.prove(observed, held, made)
            snapshots.hold(list(request.names))
            snapshots.set_on(list(request.names), dict(proof.properties))
    return Taken(made, proof)
