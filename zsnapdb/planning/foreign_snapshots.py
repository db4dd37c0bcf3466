"""Snapshots that others made on our datasets: who made them, what holds them, and whether they may go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import SNAPSHOT_PREFIX

NO_SNAPSHOTS = {"com.sun:auto-snapshot": "false", "syncoid:sync": "false"}
"""The properties by which snapshot programs leave a dataset and the datasets below it out.

The first is read by zfs-auto-snapshot and zfstools, the second by syncoid. sanoid reads no property
(jimsalterjrs/sanoid, issue 591): it has to be configured, see docs/other-snapshots.md.
"""

_MAKERS = (
    ("autosnap_", "sanoid"),
    ("syncoid_", "syncoid"),
    ("zfs-auto-snap_", "zfs-auto-snapshot"),
    ("zrepl_", "zrepl"),
    ("pyznap_", "pyznap"),
    (SNAPSHOT_PREFIX, "another zsnapdb command"),
)
"""How the names of other programs' snapshots begin, by their documentation."""

_SHOWN = 3


@dataclass(frozen=True)
class ForeignSnapshot:
    """A snapshot of a dataset of ours that others made: the tags of its holds, and the datasets cloned from it."""

    name: str
    holds: tuple[str, ...] = ()
    clones: tuple[str, ...] = ()

    @property
    def maker(self) -> str:
        """Who probably made it, by its name."""
        short = self.name.partition("@")[2]
        return next((maker for prefix, maker in _MAKERS if short.startswith(prefix)), "an administrator or a program")

    @property
    def is_needed(self) -> bool:
        """Whether a hold or a clone needs it, so that ZFS does not destroy it (zfs-destroy(8))."""
        return bool(self.holds or self.clones)

    def describe(self) -> str:
        """Return the name, who made it, and what needs it."""
        parts = [f"made by {self.maker}"]
        if self.holds:
            parts.append(f"held by {', '.join(self.holds)}")
        if self.clones:
            parts.append(f"cloned as {', '.join(self.clones)}")
        return f"{self.name} ({'; '.join(parts)})"


def listed(snapshots: Sequence[ForeignSnapshot]) -> str:
    """Return the first of the snapshots in words, and the number of the others."""
    more = f", and {len(snapshots) - _SHOWN} more" if len(snapshots) > _SHOWN else ""
    return ", ".join(snapshot.describe() for snapshot in snapshots[:_SHOWN]) + more


def objection(what: str, snapshots: Sequence[ForeignSnapshot], *, may_go: bool) -> PreflightError | None:
    """Return the error that keeps `what` as long as it has these snapshots; None if nothing keeps it.

    `may_go`: the caller asked for their destruction. A snapshot that a hold or a clone needs stays all the same.
    """
    needed = [snapshot for snapshot in snapshots if snapshot.is_needed]
    if may_go and needed:
        return PreflightError(
            f"{what} has snapshots of others that a hold or a clone needs: {listed(needed)}",
            hint="release the holds (`zfs release`) and destroy the clones first; nothing was stopped or destroyed",
        )
    if snapshots and not may_go:
        return PreflightError(
            f"{what} has snapshots that others made: {listed(snapshots)}",
            hint=(
                "add --with-foreign-snapshots to destroy these snapshots too; nothing was stopped or destroyed;"
                " `zsnapdb example other-snapshots.md` says how to keep other programs away"
            ),
        )
    return None
