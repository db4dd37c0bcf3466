"""View of the rehearsal of an upgrade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.comparison import RehearsalDocument
from zsnapdb.jobs.clone.upgrade import Rehearsal
from zsnapdb.report.view import View

_SHOWN = 20


@dataclass(frozen=True)
class RehearsalView(View):
    """The result of a rehearsal; its last line is the verdict."""

    rehearsal: Rehearsal
    kind: ClassVar[str] = "upgrade-rehearsal"
    document_class = RehearsalDocument
    read_from = "rehearsal"

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
