"""The backups of an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.base.quantities import size
from zsnapdb.documents.repository import InventoryDocument
from zsnapdb.jobs.repository.inventory import Inventory
from zsnapdb.planning.damage import KnownDamage
from zsnapdb.report.source import kind_of, position_column
from zsnapdb.report.view import Part, Table, TabularView


def _chain_lines(chains: Mapping[str, Sequence[KnownDamage]]) -> list[str]:
    """Return a line for each damage, and one for each other backup whose chain has it.

    `chains` maps the ids of backups to the damage of their chains.
    """
    each = dict.fromkeys(damage for damages in chains.values() for damage in damages)
    lines = [f"damaged: {damage.describe()}" for damage in each]
    for backup_id, damages in chains.items():
        names = [damage.name for damage in damages if damage.name != backup_id]
        if names:
            lines.append(f"damaged: backup {backup_id} needs {', '.join(dict.fromkeys(names))}")
    return lines


class InventoryView(TabularView, kind="backups", document=InventoryDocument, read_from="inventory"):
    """The backups of an instance."""

    inventory: Inventory

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
        return [backups, *lines, *_chain_lines(self.inventory.damage)]
