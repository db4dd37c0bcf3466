"""Restores and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestorePlan, RestorePoint, TimeOf
from zsnapdb.planning.restore.steps import Receive, Replay, Step
from zsnapdb.report.findings import FindingFields, finding_fields
from zsnapdb.report.view import View

if TYPE_CHECKING:
    from zsnapdb.jobs.restore.run import RestoreResult


class RestoredTransactionFields(TypedDict):
    """A transaction at the point of a restore.

    `committed` is its commit time if `time_of` is `transaction`, or the latest commit time in its binlog.
    """

    gtid: str | None
    committed: str
    time_of: TimeOf
    file: str
    end: int


class PointFields(TypedDict):
    """The point of a restore: the last transaction that is included, and the first that is left out."""

    gtids: str | None
    last: RestoredTransactionFields | None
    following: RestoredTransactionFields | None
    notes: list[str]


class StepFields(TypedDict):
    """A step of a restore."""

    name: str
    kind: str
    what: str


ReplayedBinlogFields = TypedDict("ReplayedBinlogFields", {"incarnation": str, "file": str, "from": str})
"""A binlog that is replayed, from the `host` or the `archive`."""


class RestoreFields(TypedDict):
    """What a restore makes of what.

    `buffer_pool` (bytes) is that of the server that recovers and replays; null: its own.
    """

    restore_id: str
    backup_id: str
    requested: str
    point: PointFields
    top: str
    datasets: dict[str, str]
    mount: str
    steps: list[StepFields]
    binlogs: list[ReplayedBinlogFields]
    buffer_pool: int | None


class RestorePlanDocument(RestoreFields):
    """What a restore would do, and the findings of its preflight."""

    target: str
    chain: list[str]
    findings: list[FindingFields]


class RestoreDocument(RestoreFields):
    """A restore that is finished, or that waits before `next_step`."""

    finished: bool
    next_step: str | None
    option_file: str | None
    port: int | None
    pid: int | None
    socket: str | None
    notes: list[str]
    gtids: str | None
    seconds: dict[str, float]
    receive_seconds: float
    recovery_seconds: float
    replay_seconds: float


class AbandonedDocument(TypedDict):
    """An abandoned restore."""

    top: str
    restore_id: str
    server: str


@dataclass(frozen=True)
class RestorePlanView(View):
    """What a restore would do, and the findings of its preflight."""

    plan: RestorePlan
    findings: Sequence[FitnessFinding] = ()
    kind: ClassVar[str] = "restore-plan"

    def text(self) -> str:
        plan = self.plan
        lines = [
            (
                f"restore {plan.instance} to {plan.layout.top}, mounted at {plan.layout.mount}, from backup"
                f" {plan.backup_id}"
            ),
            *point_lines(plan.requested, plan.point),
        ]
        if plan.buffer_pool is not None:
            lines.append(f"  memory    {size(plan.buffer_pool)} of buffer pool to recover and replay")
        lines += [f"  {number}. {_step(step)}" for number, step in enumerate(plan.steps, 1)]
        lines += [
            f"  {finding.severity.value:8s}  {finding.what}: {finding.detail}"
            + (f" ({finding.hint})" if finding.hint else "")
            for finding in self.findings
        ]
        return "\n".join(lines)

    def fields(self) -> RestorePlanDocument:
        plan = self.plan
        chain = list(dict.fromkeys(step.backup_id for step in plan.receives))
        return {
            "target": plan.backup_id,
            "chain": chain,
            "findings": finding_fields(self.findings),
            **_fields(plan),
        }


def point_lines(requested: str, chosen: RestorePoint) -> list[str]:
    """Return the requested point, the last transaction that is included, and the first that is left out."""
    lines = [f"  point     {requested}"]
    if chosen.last is not None:
        lines.append(f"  last in   {chosen.last.describe()}")
    if chosen.following is not None:
        lines.append(f"  first out {chosen.following.describe()}")
    if chosen.gtids is not None:
        lines.append(f"  holds     {chosen.gtids or '(no transactions)'}")
    return lines + [f"  note      {note}" for note in chosen.notes]


def point_fields(chosen: RestorePoint) -> PointFields:
    """Return the same as JSON fields."""
    return {
        "gtids": chosen.gtids,
        "last": _transaction(chosen.last),
        "following": _transaction(chosen.following),
        "notes": list(chosen.notes),
    }


def _step(step: Step) -> str:
    text = step.describe()
    if isinstance(step, Receive):
        text += f", {size(step.stored_bytes)} to fetch"
    elif isinstance(step, Replay):
        text += f", {size(step.size)} of binlogs"
    return f"{step.name}: {text}"


@dataclass(frozen=True)
class RestoreView(View):
    """A restore that is finished, or that was stopped before a step."""

    result: RestoreResult
    kind: ClassVar[str] = "restore"

    def text(self) -> str:
        result = self.result
        plan = result.plan
        if result.next_step is not None:
            return (
                f"the restore to {plan.layout.top} waits before {_step(result.next_step)}\n"
                f"continue with --resume --target {plan.layout.top}"
            )
        what = f"point {plan.requested} (backup {plan.backup_id})" if plan.replays else f"backup {plan.backup_id}"
        place = next((renamed[1] for renamed in getattr(plan.steps[-1], "renames", ())[-1:]), plan.layout.top)
        lines = [
            f"{what} of {plan.instance} is restored to {place}",
            *([] if place != plan.layout.top else [f"  mounted   {plan.layout.mount}"]),
            f"  position  {result.position.describe()}, "
            + ("exactly the GTIDs of the plan" if plan.point.gtids is not None else "the server has no GTIDs"),
            f"  took      {result.receive_seconds:.1f} s to receive,"
            f" {result.recovery_seconds:.1f} s to recover and check"
            + (f", {result.replay_seconds:.1f} s to replay" if plan.replays else ""),
        ]
        handed_over = result.handed_over
        if handed_over is not None and handed_over.port is not None:
            lines.append(f"  runs      on port {handed_over.port}, process {handed_over.pid}")
        if handed_over is not None and handed_over.socket is not None:
            lines.append(f"  look      read-only, on the socket {handed_over.socket}, process {handed_over.pid}")
        if result.option_file is not None:
            lines.append(f"  start it  with --defaults-file={result.option_file}")
        if handed_over is not None:
            lines += [f"  note      {note}" for note in handed_over.notes]
        return "\n".join(lines)

    def fields(self) -> RestoreDocument:
        result = self.result
        handed_over = result.handed_over
        return {
            **_fields(result.plan),
            "finished": result.is_finished,
            "next_step": result.next_step.name if result.next_step else None,
            "option_file": str(result.option_file) if result.option_file else None,
            "port": handed_over.port if handed_over else None,
            "pid": handed_over.pid if handed_over else None,
            "socket": str(handed_over.socket) if handed_over and handed_over.socket else None,
            "notes": list(handed_over.notes) if handed_over else [],
            "gtids": result.plan.point.gtids,
            "seconds": {done.step: done.seconds for done in result.done},
            "receive_seconds": result.receive_seconds,
            "recovery_seconds": result.recovery_seconds,
            "replay_seconds": result.replay_seconds,
        }


@dataclass(frozen=True)
class AbandonedView(View):
    """An abandoned restore. `left` says how the server is that it was to replace; "" if it replaced none."""

    plan: RestorePlan
    left: str = ""
    kind: ClassVar[str] = "restore-abandoned"

    def text(self) -> str:
        what = f"the restore of {self.plan.instance} to {self.plan.layout.top} is abandoned; its datasets are destroyed"
        return f"{what}\n{self.left}" if self.left else what

    def fields(self) -> AbandonedDocument:
        return {
            "top": self.plan.layout.top,
            "restore_id": self.plan.restore_id,
            "server": self.left,
        }


def _fields(plan: RestorePlan) -> RestoreFields:
    return {
        "restore_id": plan.restore_id,
        "backup_id": plan.backup_id,
        "requested": plan.requested,
        "point": point_fields(plan.point),
        "top": plan.layout.top,
        "datasets": dict(plan.layout.datasets),
        "mount": plan.layout.mount,
        "steps": [{"name": step.name, "kind": step.kind, "what": step.describe()} for step in plan.steps],
        "binlogs": [
            {"incarnation": log.incarnation, "file": log.file, "from": "host" if log.is_local else "archive"}
            for step in plan.replays
            for log in step.logs
        ],
        "buffer_pool": plan.buffer_pool,
    }


def _transaction(transaction: ArchivedTransaction | None) -> RestoredTransactionFields | None:
    if transaction is None:
        return None
    return {
        "gtid": transaction.gtid,
        "committed": transaction.committed.isoformat(),
        "time_of": transaction.time_of,
        "file": transaction.file,
        "end": transaction.end,
    }
