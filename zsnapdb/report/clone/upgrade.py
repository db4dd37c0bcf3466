"""An upgrade rehearsal as text and as JSON."""

from __future__ import annotations

from zsnapdb.jobs.clone.upgrade import Rehearsal
from zsnapdb.report.document import document

_SHOWN = 20


def rehearsal(result: Rehearsal) -> str:
    """What came of it, ending with the verdict."""
    lines = [f"upgrade of {result.old_version} to {result.new_version}, rehearsed on {result.backup_id}"]
    lines += [f"  {phase.name:<30} {phase.seconds:8.1f} s" for phase in result.phases]
    lines.append(
        f"  {len(result.tables)} tables checked, {sum(not checked.is_good for checked in result.tables)} of them"
        " complained of"
    )
    lines.append(
        f"  {len(result.queries)} queries compared, {sum(not compared.is_equal for compared in result.queries)} of them"
        " with another result"
    )
    lines += [f"  log       {line}" for line in result.warnings[:_SHOWN]]
    if len(result.warnings) > _SHOWN:
        lines.append(f"  log       and {len(result.warnings) - _SHOWN} more")
    lines += [f"  problem   {problem}" for problem in result.problems]
    return "\n".join([*lines, "it would not go well" if result.problems else "it would go well"])


def rehearsal_json(result: Rehearsal) -> str:
    """The same as a document."""
    return document(
        "upgrade-rehearsal",
        backup_id=result.backup_id,
        old_version=result.old_version,
        new_version=result.new_version,
        phases=[{"name": phase.name, "seconds": phase.seconds} for phase in result.phases],
        tables=[
            {"table": checked.table, "answer": checked.answer, "good": checked.is_good} for checked in result.tables
        ],
        queries=[
            {
                "query": c.query,
                "rows_before": c.before.rows,
                "rows_after": c.after.rows if c.after else None,
                "equal": c.is_equal,
                "problem": c.problem,
            }
            for c in result.queries
        ],
        warnings=list(result.warnings),
        upgrade_said=result.upgrade_said,
        problems=list(result.problems),
    )
