"""Restores as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zsnapdb.jobs.restore.run import RestoreResult
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.steps import Receive, Replay, RestorePlan, RestorePoint, Step
from zsnapdb.report.document import document
from zsnapdb.report.units import size


def plan(found: RestorePlan, findings: Sequence[FitnessFinding] = ()) -> str:
    """What a restore would do, and what its preflight finds now."""
    lines = [
        (
            f"restore {found.instance} to {found.layout.top}, mounted at {found.layout.mount}, from backup"
            f" {found.backup_id}"
        ),
        *point(found.asked, found.point),
    ]
    lines += [f"  {number}. {_step(step)}" for number, step in enumerate(found.steps, 1)]
    lines += [
        f"  {finding.severity.value:8s}  {finding.what}: {finding.detail}"
        + (f" ({finding.hint})" if finding.hint else "")
        for finding in findings
    ]
    return "\n".join(lines)


def point(asked: str, found: RestorePoint) -> list[str]:
    """What was asked for and where that leads: the last transaction in, the first one out."""
    lines = [f"  point     {asked}"]
    if found.last is not None:
        lines.append(f"  last in   {found.last.describe()}")
    if found.following is not None:
        lines.append(f"  first out {found.following.describe()}")
    if found.gtids is not None:
        lines.append(f"  holds     {found.gtids or '(no transactions)'}")
    return lines + [f"  note      {note}" for note in found.notes]


def point_fields(found: RestorePoint) -> dict[str, Any]:
    """The same for programs."""
    return {
        "gtids": found.gtids,
        "last": _transaction(found.last),
        "following": _transaction(found.following),
        "notes": list(found.notes),
    }


def _step(step: Step) -> str:
    text = step.describe()
    if isinstance(step, Receive):
        text += f", {size(step.stored_bytes)} to fetch"
    elif isinstance(step, Replay):
        text += f", {size(step.size)} of binlogs"
    return f"{step.name}: {text}"


def restore(result: RestoreResult) -> str:
    """A restore that came to its end, or was stopped before a step."""
    found = result.plan
    if result.next_step is not None:
        return (
            f"the restore to {found.layout.top} waits before {_step(result.next_step)}\ngo on with --resume --target"
            f" {found.layout.top}"
        )
    what = f"point {found.asked} (backup {found.backup_id})" if found.replays else f"backup {found.backup_id}"
    place = next((renamed[1] for renamed in getattr(found.steps[-1], "renames", ())[-1:]), found.layout.top)
    lines = [
        f"{what} of {found.instance} is restored to {place}",
        *([] if place != found.layout.top else [f"  mounted   {found.layout.mount}"]),
        f"  position  {result.position.describe()}, "
        + ("exactly the GTIDs wanted" if found.point.gtids is not None else "the server numbers no transactions"),
        f"  took      {result.receive_seconds:.1f} s to receive, {result.recovery_seconds:.1f} s to recover and check"
        + (f", {result.replay_seconds:.1f} s to replay" if found.replays else ""),
    ]
    handed_over = result.handed_over
    if handed_over is not None and handed_over.port is not None:
        lines.append(f"  runs      on port {handed_over.port}, process {handed_over.pid}")
    if result.option_file is not None:
        lines.append(f"  start it  with --defaults-file={result.option_file}")
    if handed_over is not None:
        lines += [f"  note      {note}" for note in handed_over.notes]
    return "\n".join(lines)


def abandoned(found: RestorePlan) -> str:
    """A restore that was given up."""
    return f"the restore of {found.instance} to {found.layout.top} is given up; what it had made is gone"


def _fields(found: RestorePlan) -> dict[str, Any]:
    return {
        "restore_id": found.restore_id,
        "backup_id": found.backup_id,
        "asked": found.asked,
        "point": point_fields(found.point),
        "top": found.layout.top,
        "datasets": dict(found.layout.datasets),
        "mount": found.layout.mount,
        "steps": [{"name": step.name, "kind": step.kind, "what": step.describe()} for step in found.steps],
    }


def _transaction(found: Any) -> dict[str, Any] | None:
    return None if found is None else {**asdict(found), "committed": found.committed.isoformat()}


def plan_json(found: RestorePlan, findings: Sequence[FitnessFinding] = ()) -> str:
    """What a restore would do, and what its preflight finds now."""
    chain = list(dict.fromkeys(step.backup_id for step in found.receives))
    told = [{"severity": f.severity.value, "what": f.what, "detail": f.detail, "hint": f.hint} for f in findings]
    return document("restore-plan", target=found.backup_id, chain=chain, findings=told, **_fields(found))


def restore_json(result: RestoreResult) -> str:
    """A restore that came to its end, or was stopped before a step."""
    handed_over = result.handed_over
    return document(
        "restore",
        **_fields(result.plan),
        finished=result.is_finished,
        next_step=result.next_step.name if result.next_step else None,
        option_file=str(result.option_file) if result.option_file else None,
        port=handed_over.port if handed_over else None,
        pid=handed_over.pid if handed_over else None,
        notes=list(handed_over.notes) if handed_over else [],
        gtids=result.plan.point.gtids,
        seconds={done.step: done.seconds for done in result.done},
        receive_seconds=result.receive_seconds,
        recovery_seconds=result.recovery_seconds,
        replay_seconds=result.replay_seconds,
    )


def abandoned_json(found: RestorePlan) -> str:
    """A restore that was given up."""
    return document("restore-abandoned", top=found.layout.top, restore_id=found.restore_id)
