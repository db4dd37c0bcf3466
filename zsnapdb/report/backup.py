"""A backup and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NotRequired

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.backup.plan import BackupPlan
from zsnapdb.jobs.backup.preflight import Observed
from zsnapdb.jobs.backup.run import BackupResult
from zsnapdb.planning.backup.lock_strategy import LockChoice
from zsnapdb.planning.backup.resume import ResumeDecision
from zsnapdb.report.findings import FindingFields, finding_fields, finding_lines
from zsnapdb.report.manifest import ManifestFields, kind_of, manifest_fields
from zsnapdb.report.source import result_lines
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class BackupDocument(TypedDict):
    """A finished backup. `repeat`: the run of this id had begun it before, and this command made none."""

    backup: ManifestFields
    repeat: bool
    snapshot_seconds: float
    send_seconds: float
    warnings: list[str]
    continued: list[str]


@dataclass(frozen=True)
class BackupView(View):
    """A finished backup."""

    result: BackupResult
    kind: ClassVar[str] = "backup"

    def text(self) -> str:
        result = self.result
        m = result.manifest
        return "\n".join(
            [
                f"backup {m.backup_id} of {m.instance} is in the repository",
                f"  kind      {kind_of(m.is_full)}",
                *result_lines(m.source),
                f"  stream    {size(m.plain_size)}, stored {size(m.stored_size)}{_duration(result)}",
                *(f"  before    the interrupted backup {done.backup_id} was finished" for done in result.continued),
                *(f"  warning   {text}" for text in result.warnings),
            ]
        )

    def fields(self) -> BackupDocument:
        result = self.result
        return {
            "backup": manifest_fields(result.manifest),
            "repeat": result.is_repeat,
            "snapshot_seconds": result.snapshot_seconds,
            "send_seconds": result.send_seconds,
            "warnings": list(result.warnings),
            "continued": [m.backup_id for m in result.continued],
        }


def _duration(result: BackupResult) -> str:
    return f" by the run {result.manifest.run_id}" if result.is_repeat else f" in {result.send_seconds:.1f} s"


class InterruptedFields(TypedDict):
    """An interrupted backup, and what becomes of it."""

    backup_id: str
    decision: str
    why: str
    text: str


class ReasonFields(TypedDict):
    """Why the backup is full or incremental."""

    why: str
    text: str


class WrittenPathFields(TypedDict):
    """A path that the server writes."""

    path: str
    setting: str
    volume: str


class LockChoiceFields(TypedDict):
    """How the server is held still, and what is tried if that fails."""

    strategy: str
    reason: str
    fallback: LockChoiceFields | None


class ObservedServerFields(TypedDict):
    """What a plan says about the server. The other fields are missing if the source is no server."""

    server: str | None
    paths: NotRequired[list[WrittenPathFields]]
    block_sizes: NotRequired[dict[str, int]]
    page_size: NotRequired[int]
    position: NotRequired[str]
    lock: NotRequired[LockChoiceFields]


class BackupPlanDocument(ObservedServerFields):
    """What a backup would do."""

    findings: list[FindingFields]
    volumes: dict[str, str]
    deadline_seconds: float
    hooks: list[str]
    interrupted: list[InterruptedFields]
    base: str | None
    reasons: list[ReasonFields]
    send: str
    send_reason: str
    warnings: list[str]


_DECISIONS = {
    ResumeDecision.FINISH: "settle interrupted backup",
    ResumeDecision.CONTINUE: "continue interrupted backup",
    ResumeDecision.GIVE_UP: "give up interrupted backup",
    ResumeDecision.LEAVE: "leave the leftovers of backup",
}


@dataclass(frozen=True)
class BackupPlanView(View):
    """What a backup would do: the findings, each path with its volume, then the steps."""

    plan: BackupPlan
    kind: ClassVar[str] = "backup-plan"

    def text(self) -> str:
        plan = self.plan
        observed = plan.observed
        lines = finding_lines(observed.findings)
        lines.append("")
        if isinstance(observed, Observed):
            lines.append(table(("PATH", "SETTING", "VOLUME", "DATASET"), _placed(observed)))
            lines.append("")
        steps = [
            f"{_DECISIONS[item.judgement.decision]} {item.backup_id}: {item.judgement.text}"
            for item in plan.interrupted
        ]
        steps += [f"run hook {hook}" for hook in plan.hooks if "(before" in hook]
        if isinstance(observed, Observed):
            steps.append(f"lock: {observed.choice.describe()}; at most {plan.deadline:g} s")
        steps += [f"run hook {hook}" for hook in plan.hooks if "(locked" in hook]
        datasets = ", ".join(dataset for _, dataset in sorted(observed.volumes.items()))
        steps.append(f"snapshot {datasets} in one request, then unlock")
        steps += [f"run hook {hook}" for hook in plan.hooks if "(after" in hook]
        if isinstance(observed, Observed):
            steps.append(
                f"read the position from the snapshot's own binlog; it must contain {observed.position.describe()}"
            )
        steps.append(f"send {kind_of(plan.base.base is None)}: {'; '.join(map(str, plan.base.reasons))}")
        steps[-1] += f"; in {plan.form.form} streams: {plan.form.reason}"
        steps += [f"run hook {hook}" for hook in plan.hooks if "(done" in hook]
        return "\n".join([*lines, *(f"{number}. {step}" for number, step in enumerate(steps, 1))])

    def fields(self) -> BackupPlanDocument:
        plan = self.plan
        base = plan.base.base.backup_id if plan.base.base else None
        return {
            **_server_fields(plan.observed),
            "findings": finding_fields(plan.observed.findings),
            "volumes": dict(plan.observed.volumes),
            "deadline_seconds": plan.deadline,
            "hooks": list(plan.hooks),
            "interrupted": [
                {
                    "backup_id": item.backup_id,
                    "decision": item.judgement.decision.value,
                    "why": item.judgement.because.value,
                    "text": item.judgement.text,
                }
                for item in plan.interrupted
            ],
            "base": base,
            "reasons": [{"why": reason.why.value, "text": reason.text} for reason in plan.base.reasons],
            "send": plan.form.form.value,
            "send_reason": plan.form.reason,
            "warnings": list(plan.observed.warnings),
        }


def _server_fields(observed: object) -> ObservedServerFields:
    """Return the fields of a plan that describe the server, if the source is one."""
    if not isinstance(observed, Observed):
        return {"server": None}
    return {
        "server": observed.facts.describe(),
        "paths": [
            {"path": p.path, "setting": p.what, "volume": observed.placement.volume_of[p.path]} for p in observed.paths
        ],
        "block_sizes": {str(size): count for size, count in sorted(observed.blocks.counts.items())},
        "page_size": observed.blocks.page_size,
        "position": observed.position.describe(),
        "lock": _choice(observed.choice),
    }


def _placed(observed: Observed) -> list[tuple[str, ...]]:
    """Return one row per path that the server writes. Settings with the same path share a row."""
    settings: dict[str, list[str]] = {}
    for item in observed.paths:
        settings.setdefault(item.path, []).append(item.what)
    where = observed.placement.volume_of
    return [
        (path, ", ".join(names), where[path], observed.volumes[where[path]]) for path, names in sorted(settings.items())
    ]


def _choice(choice: LockChoice) -> LockChoiceFields:
    return {
        "strategy": choice.name,
        "reason": choice.reason,
        "fallback": _choice(choice.fallback) if choice.fallback else None,
    }
