"""Findings of checks as lines and as fields."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.planning.backup.fitness import FitnessFinding


def finding_lines(findings: Sequence[FitnessFinding]) -> list[str]:
    """Return one line per check, and a line with the hint if the check has one."""
    lines = []
    for item in findings:
        lines.append(f"{item.severity:<8} {item.what:<15} {item.detail}")
        if item.hint:
            lines.append(f"{'':<8} {'':<15} hint: {item.hint}")
    return lines


def finding_fields(findings: Sequence[FitnessFinding]) -> list[dict[str, str]]:
    """Return one row per check."""
    return [{"severity": f.severity.value, "what": f.what, "detail": f.detail, "hint": f.hint} for f in findings]
