"""A copy between repositories and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import size
from zsnapdb.documents.repository import CopyDocument, CopyPlanDocument
from zsnapdb.jobs.repository.copy import CopyPlan, CopyResult
from zsnapdb.report.view import View


@dataclass(frozen=True)
class CopyPlanView(View):
    """What a copy would do."""

    plan: CopyPlan
    kind: ClassVar[str] = "copy-plan"
    document_class = CopyPlanDocument
    read_from = "plan"

    def text(self) -> str:
        plan = self.plan
        lines = [
            (
                f"copy {len(plan.missing)} backups of {plan.instance}, at most {size(plan.size)};"
                f" {plan.there} are there already"
            )
        ]
        lines += [f"  copy      {backup.backup_id}  {size(backup.stored_size)}" for backup in plan.missing]
        lines += [f"  leave     {name}: {why}" for name, why in plan.left_out.items()]
        lines += [f"  damaged   {name}: {error.message}" for name, error in plan.unreadable.items()]
        return "\n".join([*lines, *(f"  binlog    {file.name}  {size(file.stored_size)}" for file in plan.binlogs)])


@dataclass(frozen=True)
class CopyView(View):
    """A finished copy."""

    result: CopyResult
    kind: ClassVar[str] = "copy"
    document_class = CopyDocument
    read_from = "result"

    def text(self) -> str:
        result = self.result
        lines = [
            (
                f"{len(result.copied)} backups of {result.plan.instance} copied, {size(result.size)} in"
                f" {result.seconds:.1f} s; {result.plan.there} were there already"
            )
        ]
        lines += [f"  copied    {name}" for name in result.copied]
        lines += [f"  left out  {name}: {why}" for name, why in result.plan.left_out.items()]
        lines += [
            f"  failed    {name}: {why}" for name, why in [*result.failed.items(), *result.binlogs.failed.items()]
        ]
        return "\n".join([*lines, *(f"  binlog    {name}" for name in result.binlogs.copied)])
