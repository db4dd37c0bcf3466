"""What an operator of a fleet asked for: a plan, runs of jobs, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import counted
from zsnapdb.documents.fleet import FleetPlanDocument, JobRunsDocument, PausedJobsDocument
from zsnapdb.planning.fleet.answers import FleetPlan, JobRun, PausedJob
from zsnapdb.report.parts import Part, Table, TabularView


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
    document_class = FleetPlanDocument
    read_from = "plan"

    def parts(self) -> Sequence[Part]:
        return _plan_parts(self.plan, "the engine would be changed")


@dataclass(frozen=True)
class FleetAppliedView(TabularView):
    """What was changed."""

    plan: FleetPlan
    kind: ClassVar[str] = "fleet-apply"
    document_class = FleetPlanDocument
    read_from = "plan"

    def parts(self) -> Sequence[Part]:
        return _plan_parts(self.plan, "the engine was changed")


def _table(runs: Sequence[JobRun]) -> Table:
    rows = [
        (
            f"{one.started:%Y-%m-%d %H:%M:%S}",
            one.job.verb.value if one.job is not None else "-",
            one.job.instance if one.job is not None else one.workflow_id,
            one.place or "any",
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
    document_class = JobRunsDocument

    def parts(self) -> Sequence[Part]:
        return (_table(self.runs),)


@dataclass(frozen=True)
class CancelledRunsView(TabularView):
    """Runs that were asked to end."""

    runs: Sequence[JobRun]
    kind: ClassVar[str] = "fleet-cancel"
    document_class = JobRunsDocument

    def parts(self) -> Sequence[Part]:
        first = f"{counted(len(self.runs), 'run')} asked to end"
        return (first, _table(self.runs)) if self.runs else (first,)


@dataclass(frozen=True)
class FleetHistoryView(TabularView):
    """The newest runs."""

    runs: Sequence[JobRun]
    kind: ClassVar[str] = "fleet-history"
    document_class = JobRunsDocument

    def parts(self) -> Sequence[Part]:
        return (_table(self.runs),)


_FALLBACK = "a host whose agent has `fallback` begins its backups all the same: `zsnapdb agent pause` there holds them"


@dataclass(frozen=True)
class FleetPausedView(TabularView):
    """Schedules that begin nothing now."""

    jobs: Sequence[PausedJob]
    kind: ClassVar[str] = "fleet-pause"
    document_class = PausedJobsDocument

    def parts(self) -> Sequence[Part]:
        backups = any(one.verb == "backup" for one in self.jobs)
        return (
            f"{counted(len(self.jobs), 'schedule')} paused",
            *(f"  {one.verb} {one.instance}" for one in self.jobs),
            *([_FALLBACK] if backups else []),
        )


@dataclass(frozen=True)
class FleetResumedView(TabularView):
    """Schedules that begin their jobs again."""

    jobs: Sequence[PausedJob]
    kind: ClassVar[str] = "fleet-resume"
    document_class = PausedJobsDocument

    def parts(self) -> Sequence[Part]:
        first = f"{counted(len(self.jobs), 'schedule')} resumed"
        return (first, *(f"  {one.verb} {one.instance}" for one in self.jobs))
