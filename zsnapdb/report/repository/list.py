"""Views of backups, one backup, pins, and the backups that a host adopts or forgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zsnapdb.base.quantities import size
from zsnapdb.documents import repository as documents
from zsnapdb.planning.server_family import family
from zsnapdb.report.backup import detail_lines, kind_of, position_column
from zsnapdb.report.view import Part, Table, TabularView, View, table

if TYPE_CHECKING:
    from zsnapdb.jobs.repository.adopt import AdoptPlan, ForgetResult
    from zsnapdb.jobs.repository.inventory import BackupSettings, Detail, Inventory, RepositoryInstances
    from zsnapdb.planning.damage_register import KnownDamage
    from zsnapdb.repository.backup_marks import Pin


def _chain_lines(chains: Mapping[str, Sequence[KnownDamage]]) -> list[str]:
    """Return a line for each known damage, and a line for each backup that needs a damaged backup.

    `chains` maps each backup id to the known damage in the backup's chain.
    """
    each = dict.fromkeys(damage for damages in chains.values() for damage in damages)
    lines = [f"damaged: {damage.describe()}" for damage in each]
    for backup_id, damages in chains.items():
        names = [damage.name for damage in damages if damage.name != backup_id]
        if names:
            lines.append(f"damaged: backup {backup_id} needs {', '.join(dict.fromkeys(names))}")
    return lines


class InventoryView(TabularView, kind="backups", document=documents.InventoryDocument, read_from="inventory"):
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


class StoredInstancesView(TabularView, kind="stored-instances", document=documents.StoredInstancesDocument):
    """The instances in each repository."""

    repositories: Sequence[RepositoryInstances]

    def parts(self) -> Sequence[Part]:
        rows = [
            (one.repository, stored.name, str(stored.backups), stored.newest or "-")
            for one in self.repositories
            for stored in one.instances
        ]
        return [Table(("REPOSITORY", "INSTANCE", "BACKUPS", "GREATEST ID"), rows, "no instances")]


class BackupDetailView(View, kind="backup-detail", document=documents.BackupDetailDocument, read_from="detail"):
    """One backup."""

    detail: Detail

    def text(self) -> str:
        detail = self.detail
        m = detail.entry.manifest
        is_consolidated = any(volume.sent_from is not None for volume in m.volumes)
        lines = [
            (
                f"backup    {m.backup_id} of {m.instance}, {kind_of(m.is_full)}, made {m.created:%Y-%m-%d %H:%M:%S} UTC"
                f" by zsnapdb {m.tool_version}"
            ),
            *detail_lines(m.source),
            f"local     {'yes, can be cloned' if detail.entry.is_local else 'no, only in the repository'}",
            *(["streams   consolidated from a chain, not sent by the source"] if is_consolidated else []),
            f"restores  from {' -> '.join(link.backup_id for link in detail.chain)}",
            *(f"damaged   {damage.describe()}" for damage in detail.damage),
        ]
        rows = [
            (
                v.role,
                v.dataset,
                str(v.guid),
                str(v.from_guid or "-"),
                size(v.plain_size),
                size(v.stored_size),
                str(v.chunk_count),
            )
            for v in m.volumes
        ]
        return (
            "\n".join(lines) + "\n" + table(("VOLUME", "DATASET", "GUID", "FROM", "STREAM", "STORED", "CHUNKS"), rows)
        )


class BackupSettingsView(View, kind="backup-settings", document=documents.BackupSettingsDocument, read_from="settings"):
    """The recorded settings of a backup's server, as an option file."""

    settings: BackupSettings

    def text(self) -> str:
        found = self.settings
        server = f"{family(found.flavour).title} {found.server_version}"
        about = f"{server} of instance {found.instance}, from backup {found.backup_id} of {found.created:%Y-%m-%d} UTC"
        return found.recorded.option_file(found.flavour, about).rstrip("\n")


class PinView(View, kind="pin", document=documents.PinDocument):
    """A new pin."""

    pinned: Pin

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is pinned: {self.pinned.reason}"


class UnpinView(View, kind="unpin", document=documents.PinDocument):
    """A removed pin."""

    pinned: Pin

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is no longer pinned (it was: {self.pinned.reason})"


class AdoptView(View, kind="adopt", document=documents.AdoptDocument):
    """The foreign backups with the facts about them, and the backups that were, or would be, adopted."""

    plan: AdoptPlan
    is_planned: bool = False

    def text(self) -> str:
        plan = self.plan
        if not plan.candidates and plan.is_empty:
            return f"this host knows every readable backup of {plan.instance}; there is nothing to adopt"
        adopted = {backup.backup_id for backup in plan.adopted}
        word = "adopt" if self.is_planned else "adopted"
        rows = [
            (
                word if one.backup.backup_id in adopted else "no",
                one.backup.backup_id,
                "; ".join((one.why_foreign, *one.facts, *([one.objection] if one.objection else []))),
            )
            for one in plan.candidates
        ]
        lines = [table(("", "BACKUP", "KNOWN OF IT"), rows)] if rows else []
        if plan.binlogs:
            lines.append(f"{word}: {len(plan.binlogs)} archived binlogs, {plan.binlogs[0].name} the first")
        lines += [f"{word}: {kind}: {len(digests)}" for kind, digests in sorted(plan.documents.items())]
        lines += [f"no: binlog {name}: its archived copy is not whole" for name in plan.damaged]
        lines += [f"no: backup {name}: its manifest cannot be read; `prune` keeps it" for name in sorted(plan.unread)]
        if self.is_planned:
            lines.append("what is adopted counts for the retention policy, and `zsnapdb prune` may remove it")
        return "\n".join(lines)


class ForgetView(View, kind="forget", document=documents.ForgetDocument):
    """The backups that were, or would be, forgotten."""

    result: ForgetResult
    is_planned: bool = False

    def text(self) -> str:
        if not self.result.backups:
            return f"the repository has every backup of {self.result.instance} that this host stored"
        what = "would no longer be expected" if self.is_planned else "is no longer expected"
        return "\n".join(f"backup {name} {what} in the repository" for name in self.result.backups)
