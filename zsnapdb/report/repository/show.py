"""One backup."""

from __future__ import annotations

from zsnapdb.base.quantities import size
from zsnapdb.documents.repository import BackupDetailDocument
from zsnapdb.jobs.repository.inventory import Detail
from zsnapdb.report.source import detail_lines, kind_of
from zsnapdb.report.units import table
from zsnapdb.report.view import View
from zsnapdb.repository.catalogue import Summary


def _is_consolidated(backup: Summary) -> bool:
    return any(volume.sent_from is not None for volume in backup.volumes)


class BackupDetailView(View, kind="backup-detail", document=BackupDetailDocument, read_from="detail"):
    """One backup."""

    detail: Detail

    def text(self) -> str:
        detail = self.detail
        m = detail.entry.manifest
        lines = [
            (
                f"backup    {m.backup_id} of {m.instance}, {kind_of(m.is_full)}, made {m.created:%Y-%m-%d %H:%M:%S} UTC"
                f" by zsnapdb {m.tool_version}"
            ),
            *detail_lines(m.source),
            f"local     {'yes, can be cloned' if detail.entry.is_local else 'no, only in the repository'}",
            *(["streams   consolidated from a chain, not sent by the source"] if _is_consolidated(m) else []),
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
