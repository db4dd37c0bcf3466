"""A copy between repositories and its plan, as text and JSON."""

from __future__ import annotations

from zsnapdb.jobs.repository.copy import CopyPlan, CopyResult
from zsnapdb.jobs.repository.verify_binlogs import name_of
from zsnapdb.report.document import document
from zsnapdb.report.units import size


def plan(found: CopyPlan) -> str:
    """What a copy would do."""
    lines = [
        f"copy {len(found.missing)} backups of {found.instance}, at most {size(found.size)}; {found.there} are there"
    ]
    lines += [f"  copy      {backup.backup_id}  {size(backup.stored_size)}" for backup in found.missing]
    lines += [f"  leave     {name}: {why}" for name, why in found.left_out.items()]
    lines += [f"  damaged   {name}: {error.message}" for name, error in found.unreadable.items()]
    return "\n".join([*lines, *(f"  binlog    {file.name}  {size(file.stored_size)}" for file in found.binlogs)])


def plan_json(found: CopyPlan) -> str:
    """What a copy would do."""
    return document(
        "copy-plan",
        instance=found.instance,
        copy=[backup.backup_id for backup in found.missing],
        there=found.there,
        left_out=dict(found.left_out),
        unreadable=list(found.unreadable),
        binlogs=[name_of(file) for file in found.binlogs],
        bytes=found.size,
    )


def result(found: CopyResult) -> str:
    """A finished copy."""
    lines = [
        (
            f"{len(found.copied)} backups of {found.plan.instance} copied, {size(found.size)} in {found.seconds:.1f} s;"
            f" {found.plan.there} were there"
        )
    ]
    lines += [f"  copied    {name}" for name in found.copied]
    lines += [f"  left out  {name}: {why}" for name, why in found.plan.left_out.items()]
    lines += [f"  failed    {name}: {why}" for name, why in [*found.failed.items(), *found.binlogs.failed.items()]]
    return "\n".join([*lines, *(f"  binlog    {name}" for name in found.binlogs.copied)])


def result_json(found: CopyResult) -> str:
    """A finished copy."""
    return document(
        "copy",
        instance=found.plan.instance,
        copied=list(found.copied),
        there=found.plan.there,
        left_out=dict(found.plan.left_out),
        failed=dict(found.failed),
        unreadable=list(found.plan.unreadable),
        binlogs={"copied": found.binlogs.copied, "failed": found.binlogs.failed},
        bytes=found.size,
        seconds=found.seconds,
    )
