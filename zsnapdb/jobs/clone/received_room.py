"""Room for a set before it is received: judged and reserved at once, under a quota, and counted to who caused it.

ZFS keeps the promise: the anchor of the set has a reservation as long as the set is being received, so what is free in
the pool has it taken off already when the next process looks (zfsprops(7), reservation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import pool_of
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.clone import causer, locks, properties, reusable_sets
from zsnapdb.jobs.clone.sources import CloneSource, RemoteBackup
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.planning.backup.send_form import SendForm, form_of
from zsnapdb.planning.clone import room as planning
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Preflight
from zsnapdb.repository.manifest import Manifest
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import number_in

KEPT = {"reservation": "none"}
"""What a complete set gets: it has its bytes, and is promised no more. Its quota stays."""
_SIZES = ("logicalreferenced", "referenced")


def needed_for(source: RemoteBackup | RestorePlan) -> int:
    """Return how many bytes the set may occupy that is made of these backups, or by this plan."""
    if isinstance(source, RestorePlan):
        plain = sum(step.plain_bytes for step in source.steps if isinstance(step, Preflight))
        return planning.received_quota(plain)
    return planning.received_quota(sum(manifest.plain_size for manifest in source.chain), _ratio(source.chain))


def _ratio(chain: Iterable[Manifest]) -> float:
    """Return how much the pool compresses the volumes now, if the streams are not compressed already, else 1."""
    volumes = [volume for manifest in chain for volume in manifest.volumes]
    if not volumes or any(form_of(volume.send_flags) is not SendForm.PLAIN for volume in volumes):
        return 1.0
    ratios = []
    for dataset in {volume.dataset for volume in volumes}:
        if not datasets.exists(dataset):
            return 1.0
        seen = datasets.properties(dataset, _SIZES)
        logical, allocated = (number_in(seen[key].value, ["zfs", "get", key, dataset]) for key in _SIZES)
        ratios.append(logical / allocated if allocated else 1.0)
    return min(ratios)


def refuse_received(settings: Settings, home: str, set_id: str, needed: int) -> None:
    """Raise PreflightError if a set of so many bytes may not be received now; change nothing.

    Nobody may take from the pool what `clones.free_floor` keeps, a subject no more than `clones.received_per_owner`,
    and all subjects together no more than `clones.received_total`, by at most `clones.receives` at once.
    """
    above = reusable_sets.anchor_of(home, reusable_sets.RECEIVED, set_id).rpartition("/")[0]
    free = datasets.available(pool_of(above))
    if datasets.exists(above):
        free = min(free, datasets.available(above))
    reason = planning.objection_to_set(needed, free, settings.clones.free_floor)
    if reason is not None:
        raise PreflightError(
            f"{set_id} is not received: {reason}",
            hint="destroy clones that you do not need (`zsnapdb clone list`), or use a set that is on this host",
            about=(),
        )
    owner = causer.current_causer()
    if not owner:
        return
    limits, known = settings.clones, reusable_sets.known(settings, reusable_sets.RECEIVED).copies
    others = [one for one in known if one.caused_by and one.set_id != set_id]
    mine = {one.set_id: one.most_bytes for one in others if one.caused_by.casefold() == owner.casefold()}
    reason = planning.objection_to_sets_of(owner, mine, needed, limits.received_per_owner)
    if reason is not None:
        raise PreflightError(
            f"{set_id} is not received: {reason}",
            hint="destroy your clones of these sets: a set goes with its last clone",
            about=(owner,),
        )
    reason = planning.objection_to_sets_of_all(
        sum(one.most_bytes for one in others) + needed,
        limits.received_total,
        sum(one.phase is CopyPhase.MAKING for one in others),
        limits.receives,
    )
    if reason is not None:
        raise PreflightError(f"{set_id} is not received: {reason}", hint="try again later", about=())


def refuse_source(settings: Settings, home: str, source: CloneSource | RemoteBackup | RestorePlan | None) -> None:
    """Raise PreflightError if the source must be received or replayed first, and may not be; see `refuse`."""
    if isinstance(source, RemoteBackup):
        refuse_received(settings, home, source.manifest.backup_id, needed_for(source))
    elif isinstance(source, RestorePlan) and not _is_reached(settings, source):
        refuse_received(settings, home, source.restore_id, needed_for(source))


def _is_reached(settings: Settings, source: RestorePlan) -> bool:
    return reusable_sets.find_reached(settings, source.instance, source.point_identity) is not None


def promise(settings: Settings, home: str, set_id: str, facts: Mapping[str, str], needed: int) -> None:
    """Make the anchor of the set, with these properties: its room is reserved, and it can occupy no more.

    The errors are those of `refuse`; then nothing was made.
    """
    owner = causer.current_causer()
    caused = {properties.CAUSER_PROPERTY: owner} if owner else {}
    limits = {"quota": str(needed), "reservation": str(needed)}
    # Under this lock clones are made too: who looks sees every promise, and no two promise the same bytes.
    with locks.names_and_ports():
        refuse_received(settings, home, set_id, needed)
        anchor = reusable_sets.anchor_of(home, reusable_sets.RECEIVED, set_id)
        datasets.create(anchor, {**facts, **caused, **limits})
