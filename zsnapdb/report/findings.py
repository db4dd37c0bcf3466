"""Findings of checks as lines and as fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.planning.repository.host_record import StoredFinding, StoredKind

if TYPE_CHECKING:
    from zsnapdb.planning.backup.fitness import FitnessFinding


_LABELS = {
    StoredKind.EXPIRED_MISSING: "expired",
    StoredKind.FOREIGN: "foreign",
    StoredKind.REWRITTEN: "REWRITTEN",
    StoredKind.OTHER_WRITER: "other",
    StoredKind.NOT_COMPARED: "skipped",
    StoredKind.FROM_FUTURE: "FUTURE",
}


def finding_lines(findings: Sequence[FitnessFinding]) -> list[str]:
    """Return one line per check, and a line with the hint if the check has one."""
    lines = []
    for item in findings:
        lines.append(f"{item.severity:<8} {item.what:<15} {item.detail}")
        if item.hint:
            lines.append(f"{'':<8} {'':<15} hint: {item.hint}")
    return lines


def missing_lines(findings: Sequence[StoredFinding], width: int, indent: str = "") -> list[str]:
    """Return one line per difference from what this host stored, and a line with its hint. `width`: of the label."""
    lines = []
    for item in findings:
        lines.append(f"{indent}{_LABELS.get(item.kind, 'MISSING'):<{width}}{item.text}")
        lines.append(f"{indent}{'':<{width}}hint: {item.hint}")
    return lines
