"""The backups of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.repository.inventory import Inventory
from zsnapdb.report.damage import DamageFields, chain_lines, damage_fields
from zsnapdb.report.document import ErrorFields, errors_fields
from zsnapdb.report.findings import MissingFields, missing_fields
from zsnapdb.report.manifest import ManifestFields, kind_of, manifest_fields
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.source import position_column
from zsnapdb.repository.unfinished import Unfinished


class ListedBackupFields(ManifestFields):
    """A backup in a list. `local`: its snapshots are on this host. `foreign`: why this host does not know it."""

    local: bool
    foreign: str | None
    known_damage: list[DamageFields]


class SnapshotMarkFields(TypedDict):
    """A snapshot of a backup that is not finished."""

    name: str
    guid: int
    from_guid: int | None


class UnfinishedFields(TypedDict):
    """A backup that is not finished."""

    backup_id: str
    host: str
    started: str
    snapshots: dict[str, SnapshotMarkFields]


class InventoryDocument(TypedDict):
    """The backups of an instance."""

    backups: list[ListedBackupFields]
    damaged: list[ErrorFields]
    missing: list[MissingFields]
    unfinished: list[UnfinishedFields]


@dataclass(frozen=True)
class InventoryView(TabularView):
    """The backups of an instance."""

    inventory: Inventory
    kind: ClassVar[str] = "backups"

    def parts(self) -> Sequence[Part]:
        rows = [
            (
                e.manifest.backup_id,
                kind_of(e.manifest.is_full) + (", foreign" if e.manifest.backup_id in self.inventory.foreign else ""),
                size(e.manifest.plain_size),
                size(e.manifest.stored_size),
                "yes" if e.is_local else "no",
                position_column(e.manifest.source),
            )
            for e in self.inventory.entries
        ]
        headings = ("BACKUP", "KIND", "STREAM", "STORED", "LOCAL", "POSITION")
        lines = [
            f"unfinished: {u.backup_id}, begun on {u.host} at {u.started};"
            " the next `zsnapdb backup` on that host continues it"
            for u in self.inventory.unfinished
        ]
        lines += [f"foreign: {name}: {why}" for name, why in sorted(self.inventory.foreign.items())]
        backups = Table(headings, rows, "no backups: `zsnapdb backup` makes the first")
        return [backups, *lines, *chain_lines(self.inventory.damage)]

    def fields(self) -> InventoryDocument:
        inventory = self.inventory
        return {
            "backups": [
                {
                    **manifest_fields(e.manifest),
                    "local": e.is_local,
                    "foreign": inventory.foreign.get(e.manifest.backup_id),
                    "known_damage": damage_fields(inventory.damage.get(e.manifest.backup_id, ())),
                }
                for e in inventory.entries
            ],
            "damaged": errors_fields(inventory.damaged),
            "missing": missing_fields(inventory.missing),
            "unfinished": [_unfinished(u) for u in inventory.unfinished],
        }


def _unfinished(u: Unfinished) -> UnfinishedFields:
    return {
        "backup_id": u.backup_id,
        "host": u.host,
        "started": u.started,
        "snapshots": {
            role: {"name": mark.name, "guid": mark.guid, "from_guid": mark.from_guid}
            for role, mark in u.snapshots.items()
        },
    }
