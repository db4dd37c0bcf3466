"""What an operator of a fleet asked for: a plan, runs of jobs, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import counted
from zsnapdb.planning.fleet.answers import FleetPlan, JobRun, PausedJob
from zsnapdb.report.parts import Part, Table, TabularView


class FleetChangeFields(TypedDict):
    """A change of a schedule, or of the limit of a bucket. `wave`: its place in the order of the rollout."""

    change: str
    name: str
    reason: str
    wave: int


class FleetPlanDocument(TypedDict):
    """What is changed. `unchanged` are right already; `left` belong to later waves."""

    changes: list[FleetChangeFields]
    unchanged: int
    left: int


class JobRunFields(TypedDict):
    """A run of a job. `host` is where it ended, or the only host that may do it."""

    id: str
    verb: str
    instance: str
    host: str
    state: str
    started: str
    ended: str | None
    message: str


class JobRunsDocument(TypedDict):
    """Runs of jobs."""

    runs: list[JobRunFields]


class PausedJobFields(TypedDict):
    """A schedule."""

    name: str
    verb: str
    instance: str
    note: str


class PausedJobsDocument(TypedDict):
    """Schedules that were paused, or resumed."""

    schedules: list[PausedJobFields]


def _plan(plan: FleetPlan) -> FleetPlanDocument:
    changes: list[FleetChangeFields] = [
        {"change": one.kind.value, "name": one.name, "reason": one.reason, "wave": one.wave} for one in plan.changes
    ]
    return {"changes": changes, "unchanged": plan.unchanged, "left": plan.left}


def _plan_parts(plan: FleetPlan, head: str) -> Sequence[Part]:
    rows = [(one.kind.value, one.name, str(one.wave), one.reason) for one in plan.changes]
    left = f", {counted(plan.left, 'change')} of later waves left" if plan.left else ""
    first = f"{head}: {counted(len(plan.changes), 'change')}, {plan.unchanged} as they are{left}"
    return (first, Table(("CHANGE", "NAME", "WAVE", "WHY"), rows, "")) if rows else (first,)


@dataclass(frozen=True)
class FleetApplyPlanView(TabularView):
    """What would be changed."""

    plan: FleetPlan
    kind: ClassVar[str] = "fleet-apply-plan"

    def parts(self) -> Sequence[Part]:
        return _plan_parts(self.plan, "the engine would be changed")

    def fields(self) -> FleetPlanDocument:
        return _plan(self.plan)


@dataclass(frozen=True)
class FleetAppliedView(TabularView):
    """What was changed."""

    plan: FleetPlan
    kind: ClassVar[str] = "fleet-apply"

    def parts(self) -> Sequence[Part]:
        return _plan_parts(self.plan, "the engine was changed")

    def fields(self) -> FleetPlanDocument:
        return _plan(self.plan)


def _runs(runs: Sequence[JobRun]) -> JobRunsDocument:
    return {
        "runs": [
            {
                "id": one.workflow_id,
                "verb": one.job.verb.value if one.job is not None else "",
                "instance": one.job.instance if one.job is not None else "",
                "host": _host(one),
                "state": one.state,
                "started": one.started.isoformat(),
                "ended": one.ended.isoformat() if one.ended is not None else None,
                "message": one.message,
            }
            for one in runs
        ]
    }


def _host(run: JobRun) -> str:
    return run.host or (run.job.host if run.job is not None and run.job.host is not None else "")


def _table(runs: Sequence[JobRun]) -> Table:
    rows = [
        (
            f"{one.started:%Y-%m-%d %H:%M:%S}",
            one.job.verb.value if one.job is not None else "-",
            one.job.instance if one.job is not None else one.workflow_id,
            _host(one) or "any",
            one.state,
            one.message or "-",
        )
        for one in runs
    ]
    return Table(("STARTED (UTC)", "VERB", "INSTANCE", "HOST", "STATE", "MESSAGE"), rows, "there is no such run")


@dataclass(frozen=True)
class JobRunsView(TabularView):
    """Runs that were begun."""

    runs: Sequence[JobRun]
    kind: ClassVar[str] = "fleet-run"

    def parts(self) -> Sequence[Part]:
        return (_table(self.runs),)

    def fields(self) -> JobRunsDocument:
        return _runs(self.runs)


@dataclass(frozen=True)
class CancelledRunsView(TabularView):
    """Runs that were asked to end."""

    runs: Sequence[JobRun]
    kind: ClassVar[str] = "fleet-cancel"

    def parts(self) -> Sequence[Part]:
        first = f"{counted(len(self.runs), 'run')} asked to end"
        return (first, _table(self.runs)) if self.runs else (first,)

    def fields(self) -> JobRunsDocument:
        return _runs(self.runs)


@dataclass(frozen=True)
class FleetHistoryView(TabularView):
    """The newest runs."""

    runs: Sequence[JobRun]
    kind: ClassVar[str] = "fleet-history"

    def parts(self) -> Sequence[Part]:
        return (_table(self.runs),)

    def fields(self) -> JobRunsDocument:
        return _runs(self.runs)


def _schedules(jobs: Sequence[PausedJob]) -> PausedJobsDocument:
    return {
        "schedules": [{"name": one.name, "verb": one.verb, "instance": one.instance, "note": one.note} for one in jobs]
    }


_FALLBACK = "a host whose agent has `fallback` begins its backups all the same: `zsnapdb agent pause` there holds them"


@dataclass(frozen=True)
class FleetPausedView(TabularView):
    """Schedules that begin nothing now."""

    jobs: Sequence[PausedJob]
    kind: ClassVar[str] = "fleet-pause"

    def parts(self) -> Sequence[Part]:
        backups = any(one.verb == "backup" for one in self.jobs)
        return (
            f"{counted(len(self.jobs), 'schedule')} paused",
            *(f"  {one.verb} {one.instance}" for one in self.jobs),
            *([_FALLBACK] if backups else []),
        )

    def fields(self) -> PausedJobsDocument:
        return _schedules(self.jobs)


@dataclass(frozen=True)
class FleetResumedView(TabularView):
    """Schedules that begin their jobs again."""

    jobs: Sequence[PausedJob]
    kind: ClassVar[str] = "fleet-resume"

    def parts(self) -> Sequence[Part]:
        first = f"{counted(len(self.jobs), 'schedule')} resumed"
        return (first, *(f"  {one.verb} {one.instance}" for one in self.jobs))

    def fields(self) -> PausedJobsDocument:
        return _schedules(self.jobs)
