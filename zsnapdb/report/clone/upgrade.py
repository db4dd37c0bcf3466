"""View of the rehearsal of an upgrade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.upgrade import Rehearsal
from zsnapdb.report.view import View

_SHOWN = 20


class PhaseFields(TypedDict):
    """A phase of the rehearsal."""

    name: str
    seconds: float


class CheckedTableFields(TypedDict):
    """A table that was checked, and the server's answer."""

    table: str
    answer: str
    good: bool


class ComparedQueryFields(TypedDict):
    """A query before and after the upgrade."""

    query: str
    rows_before: int
    rows_after: int | None
    equal: bool
    problem: str


class RehearsalDocument(TypedDict):
    """The rehearsal of an upgrade."""

    backup_id: str
    old_version: str
    new_version: str
    phases: list[PhaseFields]
    tables: list[CheckedTableFields]
    queries: list[ComparedQueryFields]
    warnings: list[str]
    upgrade_output: str
    problems: list[str]


@dataclass(frozen=True)
class RehearsalView(View):
    """The result of a rehearsal; its last line is the verdict."""

    rehearsal: Rehearsal
    kind: ClassVar[str] = "upgrade-rehearsal"

    def text(self) -> str:
        rehearsal = self.rehearsal
        lines = [f"upgrade of {rehearsal.old_version} to {rehearsal.new_version}, rehearsed on {rehearsal.backup_id}"]
        lines += [f"  {phase.name:<30} {phase.seconds:8.1f} s" for phase in rehearsal.phases]
        bad = sum(not checked.is_good for checked in rehearsal.tables)
        lines.append(f"  {len(rehearsal.tables)} tables checked, {bad} with problems")
        different = sum(not compared.is_equal for compared in rehearsal.queries)
        lines.append(f"  {len(rehearsal.queries)} queries compared, {different} with a different result")
        lines += [f"  log       {line}" for line in rehearsal.warnings[:_SHOWN]]
        if len(rehearsal.warnings) > _SHOWN:
            lines.append(f"  log       and {len(rehearsal.warnings) - _SHOWN} more")
        lines += [f"  problem   {problem}" for problem in rehearsal.problems]
        return "\n".join(
            [*lines, "the upgrade would fail or change results" if rehearsal.problems else "the upgrade would succeed"]
        )

    def fields(self) -> RehearsalDocument:
        rehearsal = self.rehearsal
        return {
            "backup_id": rehearsal.backup_id,
            "old_version": rehearsal.old_version,
            "new_version": rehearsal.new_version,
            "phases": [{"name": phase.name, "seconds": phase.seconds} for phase in rehearsal.phases],
            "tables": [
                {"table": checked.table, "answer": checked.answer, "good": checked.is_good}
                for checked in rehearsal.tables
            ],
            "queries": [
                {
                    "query": c.query,
                    "rows_before": c.before.rows,
                    "rows_after": c.after.rows if c.after else None,
                    "equal": c.is_equal,
                    "problem": c.problem,
                }
                for c in rehearsal.queries
            ],
            "warnings": list(rehearsal.warnings),
            "upgrade_output": rehearsal.upgrade_output,
            "problems": list(rehearsal.problems),
        }
