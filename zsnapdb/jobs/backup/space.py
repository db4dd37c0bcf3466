"""Reads the space of the pool and of the volumes of an instance, and judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.base.model import pool_of
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.backup.space import DatasetSpace, judge_space
from zsnapdb.zfs import datasets
from zsnapdb.zfs.datasets import Property

NAMES = ("available", "used", "written", "usedbyrefreservation", "quota", "refquota", "refreservation")
"""The properties that say what space a dataset has."""


def judge_volumes_space(
    volumes: Sequence[str], read: Mapping[str, dict[str, Property]] | None = None
) -> list[FitnessFinding]:
    """Return the findings about the space for a snapshot of the volumes, which lie in one pool.

    `read`: the properties NAMES of the pool and the volumes, if the caller has just read them.
    """
    if not volumes:
        return []
    pool = pool_of(volumes[0])
    if read is None:
        read = datasets.properties_of(list(dict.fromkeys([pool, *volumes])), NAMES)
    return judge_space(_space(pool, read[pool]), [_space(name, read[name]) for name in volumes])


def _space(name: str, values: dict[str, Property]) -> DatasetSpace:
    # Without a limit `zfs get -p` prints 0, or none in some releases.
    numbers = [int(values[key].value) if values[key].value.isdigit() else 0 for key in NAMES]
    return DatasetSpace(name, *numbers)
