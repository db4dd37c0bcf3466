"""Evidence of a drill."""

from __future__ import annotations

from datetime import UTC, datetime

from zsnapdb.repository.drills import CheckPart, Evidence, Outcome


def evidence(
    outcome: Outcome, repository_id: str = "aaaaaaaaaaaaaaaa", drill_id: str = "20261122T000000Z-0001"
) -> Evidence:
    """Return the evidence of a drill whose only check had this outcome."""
    at = datetime(2026, 11, 22, tzinfo=UTC)
    return Evidence(
        drill_id=drill_id,
        instance="main",
        repository_id=repository_id,
        requested="latest",
        backup_id="20261122T000000Z-0000",
        seed=1,
        host="here",
        started=at,
        finished=at,
        tool_version="1",
        zfs_version="zfs-2.3.4",
        server_version="8.4.6",
        position="",
        steps=(),
        checks=(CheckPart(kind="pages", what="ibdata1", outcome=outcome, finding="a page"),),
        notes=(),
        has_read_all_pages=False,
    )
