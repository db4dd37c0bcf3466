"""The part of a clone's view that says what masking did."""

from __future__ import annotations

from zsnapdb.jobs.clone.masking import MaskingReport


def masking_lines(report: MaskingReport) -> list[str]:
    """Return the lines about masking."""
    lines = [f"  masked    in {report.seconds:.1f} s, {len(report.rebuilt)} tables rebuilt"]
    for step in report.steps:
        done = "script" if step.statements is None else f"{step.statements} statements, {step.rows} rows changed"
        lines.append(f"            {step.name}: {done}, {step.seconds:.1f} s")
    return lines + [f"  remains   {where}" for where in report.remains]
