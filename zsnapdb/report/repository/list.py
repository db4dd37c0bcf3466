"""The backups of an instance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from zsnapdb.jobs.repository.inventory import Inventory
from zsnapdb.quantities import size
from zsnapdb.report.damage import chain_lines, damage_fields
from zsnapdb.report.document import errors_fields
from zsnapdb.report.findings import missing_fields
from zsnapdb.report.manifest import kind_of, manifest_fields
from zsnapdb.report.source import position_column
from zsnapdb.report.units import table
from zsnapdb.report.view import Fields, View
from zsnapdb.repository.unfinished import Unfinished


@dataclass(frozen=True)
class InventoryView(View):
    """The backups of an instance."""

    inventory: Inventory
    kind: ClassVar[str] = "backups"

    def text(self) -> str:
        rows = [
            (
                e.manifest.backup_id,
                kind_of(e.manifest.is_full),
                size(e.manifest.plain_size),
                size(e.manifest.stored_size),
                "yes" if e.is_local else "no",
                position_column(e.manifest.source),
            )
            for e in self.inventory.entries
        ]
        lines = [table(("BACKUP", "KIND", "STREAM", "STORED", "LOCAL", "POSITION"), rows)]
        lines += [
            f"unfinished: {u.backup_id}, begun on {u.host} at {u.started};"
            " the next `zsnapdb backup` on that host continues it"
            for u in self.inventory.unfinished
        ]
        return "\n".join([*lines, *chain_lines(self.inventory.damage)])

    def fields(self) -> Fields:
        inventory = self.inventory
        return {
            "backups": [
                {
                    **manifest_fields(e.manifest),
                    "local": e.is_local,
                    "known_damage": damage_fields(inventory.damage.get(e.manifest.backup_id, ())),
                }
                for e in inventory.entries
            ],
            "damaged": errors_fields(inventory.damaged),
            "missing": missing_fields(inventory.missing),
            "unfinished": [_unfinished(u) for u in inventory.unfinished],
        }


def _unfinished(u: Unfinished) -> dict[str, Any]:
    return {
        "backup_id": u.backup_id,
        "host": u.host,
        "started": u.started,
        "snapshots": {role: asdict(mark) for role, mark in u.snapshots.items()},
    }
