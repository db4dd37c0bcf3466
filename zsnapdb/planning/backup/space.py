"""Check that a pool and its datasets have space for a snapshot and for the server's writes after it. Pure.

A snapshot uses no data space, but its metadata is charged to the pool. With less than a few blocks free, `zfs snapshot`
fails (ENOSPC). A dataset with a refreservation needs as much space outside of the reservation as was written since its
last snapshot (zfsprops(7), refreservation and written; dsl_dataset_snapshot_reserve_space). This is only a warning, as
these numbers are not exactly those that ZFS compares. A quota refuses no snapshot. But the snapshot keeps every block
that the server overwrites later, which counts against `quota` and not against `refquota`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.quantities import size
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, unfit, warning

POOL_FLOOR = 4 << 20
"""Bytes that a pool must have free. A snapshot set, its properties, holds and bookmarks take a few blocks each."""
LOW_PERCENT = 5
"""The percentage of free space below which a dataset is reported."""


@dataclass(frozen=True)
class DatasetSpace:
    """The space of a dataset in bytes: properties of zfsprops(7). 0 means that a limit is not set."""

    name: str
    available: int
    used: int
    written: int
    used_by_refreservation: int
    quota: int
    refquota: int
    refreservation: int


def judge_space(pool: DatasetSpace, volumes: Sequence[DatasetSpace]) -> list[FitnessFinding]:
    """Return the findings about the space of the pool's root dataset and of the volumes in it."""
    if pool.available < POOL_FLOOR:
        return [
            unfit(
                "space",
                f"the pool {pool.name} has {size(pool.available)} free, a snapshot needs {size(POOL_FLOOR)}:"
                " `zfs snapshot` would fail, and so may the server",
                f"free space in {pool.name}: `zfs list -o space -r {pool.name}` shows what uses it (datasets,"
                " snapshots, reservations); add a disk, or run `zsnapdb prune`",
            )
        ]
    findings = [finding for volume in volumes for finding in _judge_volume(pool, volume)]
    low = min(volumes, key=lambda volume: volume.available, default=pool)
    return findings or [ok("space", f"{low.name} has {size(low.available)} free, {pool.name} {size(pool.available)}")]


def _judge_volume(pool: DatasetSpace, volume: DatasetSpace) -> list[FitnessFinding]:
    reserved = min(volume.written, volume.refreservation)
    outside = max(volume.available - volume.used_by_refreservation, pool.available if volume.refquota else 0)
    if reserved > outside:
        return [
            warning(
                "space",
                f"{volume.name} has a refreservation of {size(volume.refreservation)}, so a snapshot needs"
                f" {size(reserved)} outside of it, and {size(outside)} are free there: `zfs snapshot` may fail",
                f"lower the reservation (`zfs set refreservation=none {volume.name}`), or free space in {pool.name}",
            )
        ]
    whole = volume.used + volume.available
    if volume.available * 100 >= whole * LOW_PERCENT:
        return []
    limit, hint = _limit_of(pool, volume)
    return [
        warning(
            "space",
            f"{volume.name} has {size(volume.available)} free of {size(whole)}, because of {limit}: a snapshot keeps"
            " what the server overwrites, and the server may find no space",
            hint,
        )
    ]


def _limit_of(pool: DatasetSpace, volume: DatasetSpace) -> tuple[str, str]:
    """Return the limit of the volume's free space in words, and a hint."""
    if volume.refquota and volume.available < pool.available:
        return f"its refquota of {size(volume.refquota)}", f"raise it: `zfs set refquota=… {volume.name}`"
    if volume.quota and volume.available < pool.available:
        return (
            f"its quota of {size(volume.quota)}",
            f"raise it (`zfs set quota=… {volume.name}`), or keep fewer local snapshots (`local` of the policy)",
        )
    if volume.available < pool.available:
        return "a quota of a dataset above it", f"see `zfs get -r quota {pool.name}`"
    return f"the pool {pool.name}", f"free space: `zfs list -o space -r {pool.name}`; keep fewer local snapshots"
