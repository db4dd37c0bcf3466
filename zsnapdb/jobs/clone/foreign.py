"""Snapshots that others made on the datasets of a clone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.base.model import Snapshot
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.clone.properties import CLONE_PROPERTY, COMMIT_PROPERTY, clone_mark
from zsnapdb.jobs.clone.volumes import is_detaching
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot, listed, objection
from zsnapdb.zfs import foreign, owned
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.owned import Mark

COLUMNS = (CLONE_PROPERTY, COMMIT_PROPERTY, *foreign.COLUMNS)
"""What is read of each snapshot of a clone, to know whose it is."""
SeenSnapshots = Mapping[Snapshot, dict[str, Property]]
"""Snapshots with properties of theirs."""


def on_clone(top: str, name: str, seen: SeenSnapshots | None = None) -> list[ForeignSnapshot]:
    """Return the snapshots that others made on `top`, a dataset of the clone, and on the datasets below it.

    `seen` are all snapshots there, with `COLUMNS` (None: they are read here).
    """
    marks = (clone_mark(name), Mark(COMMIT_PROPERTY))
    if seen is None:
        return foreign.foreign_below(top, marks, _is_ours)
    return foreign.among(seen, marks, _is_ours)


def _is_ours(snapshot: Snapshot) -> bool:
    return is_detaching(snapshot.name)


def refuse(top: str, name: str, *, may_go: bool, seen: SeenSnapshots | None = None) -> list[ForeignSnapshot]:
    """Return the snapshots that others made on the clone and that go with it.

    PreflightError, which says whose they are and what holds them, if they must stay. Nothing is changed. `seen` as in
    `on_clone`.
    """
    snapshots = on_clone(top, name, seen)
    error = objection(f"clone {name}", snapshots, may_go=may_go)
    if error is not None:
        raise error
    return snapshots


def warn_of_kept(kept: Sequence[ForeignSnapshot], name: str, events: Events) -> None:
    """Warn that these snapshots of others keep the data that the clone had before it got other data."""
    if kept:
        events.warn(
            f"the data of before stays in the pool, because others made snapshots of clone {name}: {listed(kept)};"
            " `zsnapdb reap --with-foreign-snapshots` removes both"
        )


def let_go(snapshots: Sequence[ForeignSnapshot], name: str) -> None:
    """Destroy the snapshots. NotOursError, and nothing is destroyed, unless they lie on datasets of the clone."""
    owned.destroy_snapshots_on([snapshot.name for snapshot in snapshots], clone_mark(name))
