"""Describes snapshots of instance datasets that zsnapdb did not create: their creators, holds and clones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import SNAPSHOT_PREFIX
from zsnapdb.base.errors import PreflightError

NO_SNAPSHOTS = {"com.sun:auto-snapshot": "false", "syncoid:sync": "false"}
"""The properties that exclude a dataset and its children from snapshot programs.

zfs-auto-snapshot and zfstools read the first property, and syncoid reads the second. sanoid reads no property
(jimsalterjrs/sanoid, issue 591) and must be configured (docs/other-snapshots.md).
"""

_MAKERS = (
    ("autosnap_", "sanoid"),
    ("syncoid_", "syncoid"),
    ("zfs-auto-snap_", "zfs-auto-snapshot"),
    ("zrepl_", "zrepl"),
    ("pyznap_", "pyznap"),
    (SNAPSHOT_PREFIX, "another zsnapdb command"),
)
"""Prefixes of other programs' snapshot names, from their documentation."""

_SHOWN = 3


@dataclass(frozen=True)
class ForeignSnapshot:
    """A snapshot of an instance dataset that another program created, with its clones and hold tags."""

    name: str
    holds: tuple[str, ...] = ()
    clones: tuple[str, ...] = ()

    @property
    def maker(self) -> str:
        """The probable creator, guessed from the name."""
        short = self.name.partition("@")[2]
        return next((maker for prefix, maker in _MAKERS if short.startswith(prefix)), "an administrator or a program")

    @property
    def is_needed(self) -> bool:
        """Whether a hold or a clone prevents ZFS from destroying the snapshot (zfs-destroy(8))."""
        return bool(self.holds or self.clones)

    def describe(self) -> str:
        parts = [f"made by {self.maker}"]
        if self.holds:
            parts.append(f"held by {', '.join(self.holds)}")
        if self.clones:
            parts.append(f"cloned as {', '.join(self.clones)}")
        return f"{self.name} ({'; '.join(parts)})"


def listing(snapshots: Sequence[ForeignSnapshot]) -> str:
    """Return a text that describes the first three snapshots and counts all further snapshots."""
    more = f", and {len(snapshots) - _SHOWN} more" if len(snapshots) > _SHOWN else ""
    return ", ".join(snapshot.describe() for snapshot in snapshots[:_SHOWN]) + more


def objection(what: str, snapshots: Sequence[ForeignSnapshot], *, may_go: bool) -> PreflightError | None:
    """Return an error if the given snapshots prevent the removal of `what`; None if they do not.

    With `may_go`, the caller allows the destruction of the snapshots. Even then, a snapshot with a hold or a clone is
    protected.
    """
    needed = [snapshot for snapshot in snapshots if snapshot.is_needed]
    if may_go and needed:
        return PreflightError(
            f"{what} has snapshots of other programs that a hold or a clone needs: {listing(needed)}",
            hint="release the holds (`zfs release`) and destroy the clones first; nothing was stopped or destroyed",
        )
    if snapshots and not may_go:
        return PreflightError(
            f"{what} has snapshots that other programs made: {listing(snapshots)}",
            hint=(
                "add --with-foreign-snapshots to destroy these snapshots too; nothing was stopped or destroyed;"
                " `zsnapdb example other-snapshots.md` says how to keep other programs away"
            ),
        )
    return None
