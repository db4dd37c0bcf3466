"""The servers of an instance that restores replaced: their datasets are kept under other names, not mounted.

Every such dataset says by its own properties which restore replaced it, when, and which volume it was. Its last state
has snapshots of one moment, so that a clone of it can be made: the writes after the point of the restore are there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import PROPERTY, Snapshot, SnapshotSet, is_backup_id
from zsnapdb.base.patterns import ROLE
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY, REPLACED, STATE_PROPERTY, snapshot_name
from zsnapdb.jobs.host import production
from zsnapdb.planning import order
from zsnapdb.planning.clone.lease import FOREVER, JudgedLease, LeaseVerdict, read_stamp, stamp
from zsnapdb.planning.restore.handover_steps import PromotePart, place_of, replaced_suffix
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY, Origin
from zsnapdb.zfs import datasets, owned, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.owned import Mark

REPLACED_PROPERTY = f"{PROPERTY}:replaced"
"""On every dataset that a restore replaced: the id of that restore."""
_INSTANCE = f"{PROPERTY}:replaced-instance"
_ROLE = f"{PROPERTY}:replaced-role"
_AT = f"{PROPERTY}:replaced-at"
_ROLE_FORM = re.compile(ROLE)


@dataclass(frozen=True)
class ReplacedServer:
    """The datasets of a server that a restore replaced, by role, and how many bytes they hold that nothing else does.

    `replaced` is when (UTC). `sealed` are the snapshots of its last state, by role; they may be missing.
    """

    restore_id: str
    instance: str
    replaced: datetime
    datasets: Mapping[str, str]
    used: int
    sealed: Mapping[str, Snapshot]

    @property
    def set(self) -> SnapshotSet | None:
        """The snapshot set of its last state; None if it is not complete."""
        whole = set(self.sealed) == set(self.datasets) and len({s.createtxg for s in self.sealed.values()}) == 1
        return SnapshotSet(self.restore_id, dict(self.sealed)) if whole else None

    def expires(self, keep: float | None) -> datetime | None:
        """Return when its datasets may be destroyed, if they are kept for so many seconds (None: never)."""
        return None if keep is None or self.replaced == FOREVER else self.replaced + timedelta(seconds=keep)

    def judge(self, keep: float | None, now: datetime) -> JudgedLease:
        """Return what a sweep does with its datasets at `now`, and why."""
        expires = self.expires(keep)
        if expires is None:
            return JudgedLease(LeaseVerdict.KEEP, "restore.keep_replaced is not set")
        return JudgedLease(LeaseVerdict.KEEP if expires > now else LeaseVerdict.REAP, f"kept until {stamp(expires)}")


def mark(parts: Sequence[PromotePart], restore_id: str, instance: str, now: datetime) -> None:
    """Mark the datasets that were replaced. Only from then on they can be removed, so this ends an exchange.

    A part that an interrupted run marked keeps its time.
    """
    for part in parts:
        if part.old is None:
            continue
        # The volumes inside inherit the property of the outer one, which says nothing about them.
        if not owned.is_ours(part.old, Mark(REPLACED_PROPERTY, restore_id)):
            values = {REPLACED_PROPERTY: restore_id, _INSTANCE: instance, _ROLE: part.role, _AT: stamp(now)}
            datasets.set_properties(part.old, values)


def settle(server: ReplacedServer, now: datetime) -> ReplacedServer:
    """Have a server that was replaced while the clock was ahead count as replaced now."""
    for name in server.datasets.values():
        datasets.set_properties(name, {_AT: stamp(now)})
    return replace(server, replaced=now)


def seal(parts: Sequence[PromotePart], restore_id: str, instance: str, origin: Origin) -> bool:
    """Snapshot the last state of the replaced datasets at one moment, unless an earlier run did.

    False if not every dataset replaced an old one: then there is no whole server to make a clone of.
    """
    olds = [part.old for part in parts if part.old is not None]
    names = [f"{old}@{snapshot_name(restore_id)}" for old in olds]
    is_whole = len(olds) == len(parts)
    if not olds or any(datasets.exists(name) for name in names):
        return is_whole
    facts = {
        BACKUP_PROPERTY: restore_id,
        INSTANCE_PROPERTY: instance,
        STATE_PROPERTY: REPLACED,
        ORIGIN_PROPERTY: origin.encode(),
    }
    snapshots.by_command(names, facts)
    return is_whole


def listing(instance: Instance) -> list[ReplacedServer]:
    """Return the replaced servers of the instance whose datasets lie beside its volumes, oldest first.

    The instance's volumes are known. Datasets whose properties cannot be read as ours are left out.
    """
    columns = [REPLACED_PROPERTY, _INSTANCE, _ROLE, _AT, "used"]
    members: dict[str, dict[str, dict[str, Property]]] = defaultdict(dict)
    for top, restore_id in _tops(instance).items():
        for name, values in datasets.children(top, columns).items():
            mark = values[REPLACED_PROPERTY]
            is_own = mark.is_local and (mark.value, values[_INSTANCE].value) == (restore_id, instance.name)
            if is_own and _ROLE_FORM.fullmatch(values[_ROLE].value):
                members[restore_id][name] = values
    servers = [_server(instance, restore_id, parts) for restore_id, parts in sorted(members.items())]
    # The seal was made when the server was replaced. Without one, nothing but its absence orders it.
    return order.by_creation(servers, lambda one: next((sealed.createtxg for sealed in one.sealed.values()), 0))


def _tops(instance: Instance) -> dict[str, str]:
    """Return the replaced datasets that lie beside the outermost volumes of the instance, with the ids of the restores.

    Who puts an old dataset back in its place may leave its properties on it. So its name must tell the same.
    """
    volumes = instance.volumes.values()
    outermost = [name for name in volumes if not any(name.startswith(other + "/") for other in volumes)]
    parents = sorted({name.rpartition("/")[0] for name in outermost} - {""})
    return {
        name: mark.value
        for parent in parents
        if datasets.exists(parent)
        for name, values in datasets.children(parent, [REPLACED_PROPERTY], depth=1).items()
        if (mark := values[REPLACED_PROPERTY]).is_local
        and is_backup_id(mark.value)
        and name.endswith(replaced_suffix(mark.value))
        and name not in volumes
    }


def _server(instance: Instance, restore_id: str, parts: Mapping[str, dict[str, Property]]) -> ReplacedServer:
    sealed = {}
    for marked in snapshots.owned(parts, [STATE_PROPERTY]):
        if marked.snapshot.name == snapshot_name(restore_id) and marked.properties[STATE_PROPERTY] == REPLACED:
            sealed[parts[marked.snapshot.dataset][_ROLE].value] = marked.snapshot
    return ReplacedServer(
        restore_id,
        instance.name,
        # A time that cannot be read is later than all others: such datasets are kept.
        max(read_stamp(values[_AT].value) for values in parts.values()),
        {values[_ROLE].value: name for name, values in parts.items()},
        # The bytes of a dataset contain those of the datasets below it (zfsprops(7), used).
        sum(
            int(values["used"].value)
            for name, values in parts.items()
            if not any(name.startswith(other + "/") for other in parts)
        ),
        sealed,
    )


def named(instance: Instance, restore_id: str) -> ReplacedServer | None:
    """Return the server that this restore replaced; None if its datasets are not here."""
    return next((server for server in listing(instance) if server.restore_id == restore_id), None)


def refuse_replaced_removal(server: ReplacedServer, under_way: Mapping[str, str]) -> None:
    """Raise PreflightError unless all datasets of the replaced server may be destroyed. Changes nothing.

    `production.refuse_removal` says when they may. None belongs to a restore that is `under_way` (dataset to instance).
    """
    names = list(server.datasets.values())
    places = {name: place_of(name, server.restore_id) for name in names}
    busy = [name for name in (*names, *places.values()) if name in under_way]
    if busy:
        raise PreflightError(
            f"{busy[0]} belongs to a restore of {under_way[busy[0]]} that is under way",
            hint=f"end it first: `zsnapdb rewind {under_way[busy[0]]} --resume`, or `zsnapdb restore"
            f" {under_way[busy[0]]} --resume` or --abandon",
        )
    seal = {snapshot.dataset: snapshot.full_name for snapshot in server.sealed.values()}
    production.refuse_removal(names, list(places.values()), seal)


def remove(server: ReplacedServer, under_way: Mapping[str, str]) -> None:
    """Destroy the datasets of a replaced server with all their snapshots.

    PreflightError, and nothing is destroyed, as for `refuse_removal`. NotOursError if one is not marked as replaced by
    that restore.
    """
    refuse_replaced_removal(server, under_way)
    mark = Mark(REPLACED_PROPERTY, server.restore_id)
    owned.destroy_datasets(server.datasets.values(), mark, with_snapshots=True)
