"""Where a restore takes its volumes from: the repository, or the backup's snapshots on this host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import Snapshot, pool_of


class RestoreOrigin(StrEnum):
    """The requested origin. AUTO: this host if it has every snapshot, else the repository."""

    AUTO = "auto"
    LOCAL = "local"
    REPOSITORY = "repository"


class SetStanding(StrEnum):
    """What this host knows of a snapshot set on it that no repository was asked about, or that none lists."""

    LOCAL = "local"
    STORED = "stored"
    UNKNOWN = "unknown"


def standing_note(backup_id: str, standing: SetStanding) -> str:
    """Return in words what the set with which a restore begins is."""
    if standing is SetStanding.LOCAL:
        return f"{backup_id} is a local set (`zsnapdb snapshot`), which is in no repository"
    if standing is SetStanding.STORED:
        return f"{backup_id} is a backup that this host stored; this restore begins with its snapshots on this host"
    return f"whether the set {backup_id} is in a repository is not known: the record of this host cannot be read"


@dataclass(frozen=True)
class OriginChoice:
    """The chosen origin, with its reason. `snapshots`: the full names to clone by role (empty: all is fetched)."""

    reason: str
    snapshots: Mapping[str, str] = field(default_factory=dict)


def choose_origin(
    requested: RestoreOrigin, backup_id: str, guids: Mapping[str, int], here: Mapping[str, Snapshot], target: str
) -> OriginChoice:
    """Return where the volumes of a backup come from.

    `guids` are those of the backup's snapshots by role, `here` the snapshots of their names on this host. A clone lies
    in the pool of its snapshot (zfs-clone(8)), so `target`, the dataset to restore to, must be in that pool.
    PreflightError if this host was requested and lacks something.
    """
    if requested is RestoreOrigin.REPOSITORY:
        return OriginChoice("the repository was requested")
    obstacle = _obstacle(guids, here, target)
    if obstacle is None:
        names = {role: snapshot.full_name for role, snapshot in sorted(here.items())}
        return OriginChoice(f"this host has every snapshot of {backup_id}: nothing of it is fetched", names)
    if requested is RestoreOrigin.LOCAL:
        raise PreflightError(
            f"backup {backup_id} cannot be restored from the snapshots on this host: {obstacle}",
            hint="use --origin repository, or choose a backup of `zsnapdb list --local`",
        )
    return OriginChoice(f"everything is fetched: {obstacle}")


def _obstacle(guids: Mapping[str, int], here: Mapping[str, Snapshot], target: str) -> str | None:
    for role, guid in sorted(guids.items()):
        snapshot = here.get(role)
        if snapshot is None:
            return f"it has no snapshot of volume {role}"
        if snapshot.guid != guid:
            return f"{snapshot.full_name} is another snapshot: its GUID is {snapshot.guid}, the backup's is {guid}"
        if pool_of(snapshot.dataset) != pool_of(target):
            return f"{snapshot.full_name} is in another pool than the target {target}"
    return None
