"""A copy between repositories and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.repository.copy import CopyPlan, CopyResult
from zsnapdb.jobs.repository.verify_binlogs import name_of
from zsnapdb.report.view import View


class CopyPlanDocument(TypedDict):
    """What a copy would do. `left_out`: the backups that are not copied, with the reason."""

    instance: str
    copy: list[str]
    there: int
    left_out: dict[str, str]
    unreadable: list[str]
    binlogs: list[str]
    bytes: int


class CopiedBinlogsFields(TypedDict):
    """The binlogs of a copy."""

    copied: list[str]
    failed: dict[str, str]


class CopyDocument(TypedDict):
    """A finished copy."""

    instance: str
    copied: list[str]
    there: int
    left_out: dict[str, str]
    failed: dict[str, str]
    unreadable: list[str]
    binlogs: CopiedBinlogsFields
    bytes: int
    seconds: float


@dataclass(frozen=True)
class CopyPlanView(View):
    """What a copy would do."""

    plan: CopyPlan
    kind: ClassVar[str] = "copy-plan"

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

    def fields(self) -> CopyPlanDocument:
        plan = self.plan
        return {
            "instance": plan.instance,
            "copy": [backup.backup_id for backup in plan.missing],
            "there": plan.there,
            "left_out": dict(plan.left_out),
            "unreadable": list(plan.unreadable),
            "binlogs": [name_of(file) for file in plan.binlogs],
            "bytes": plan.size,
        }


@dataclass(frozen=True)
class CopyView(View):
    """A finished copy."""

    result: CopyResult
    kind: ClassVar[str] = "copy"

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

    def fields(self) -> CopyDocument:
        result = self.result
        return {
            "instance": result.plan.instance,
            "copied": list(result.copied),
            "there": result.plan.there,
            "left_out": dict(result.plan.left_out),
            "failed": dict(result.failed),
            "unreadable": list(result.plan.unreadable),
            "binlogs": {"copied": result.binlogs.copied, "failed": result.binlogs.failed},
            "bytes": result.size,
            "seconds": result.seconds,
        }
