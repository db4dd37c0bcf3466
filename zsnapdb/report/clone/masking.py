"""The part of a clone's view that says what masking did."""

from __future__ import annotations

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.planning.clone.masking import dotted


class MaskingStepFields(TypedDict):
    """A step of masking. A script has no number of statements."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


class MaskingFields(TypedDict):
    """What masking did. `remains`: where old values may remain."""

    seconds: float
    steps: list[MaskingStepFields]
    rebuilt: list[str]
    remains: list[str]


def masking_lines(report: MaskingReport) -> list[str]:
    """Return the lines about masking."""
    lines = [f"  masked    in {report.seconds:.1f} s, {len(report.rebuilt)} tables rebuilt"]
    for step in report.steps:
        done = "script" if step.statements is None else f"{step.statements} statements, {step.rows} rows changed"
        lines.append(f"            {step.name}: {done}, {step.seconds:.1f} s")
    return lines + [f"  remains   {where}" for where in report.remains]


def masking_fields(report: MaskingReport) -> MaskingFields:
    """Return the JSON fields of masking."""
    return {
        "seconds": report.seconds,
        "steps": [
            {"name": s.name, "statements": s.statements, "rows": s.rows, "seconds": s.seconds} for s in report.steps
        ],
        "rebuilt": [dotted(table) for table in report.rebuilt],
        "remains": list(report.remains),
    }
