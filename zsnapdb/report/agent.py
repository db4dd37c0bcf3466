"""Views of the agent: its jobs, their runs and pauses, and the notified targets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from zsnapdb.agent.schedule import RanJob
from zsnapdb.agent.web import AgentOverview, JobOverview
from zsnapdb.base.errors import BusyError
from zsnapdb.base.quantities import format_duration
from zsnapdb.documents.host import AgentDocument, AgentPauseDocument, AgentRunDocument, NotifiedDocument
from zsnapdb.planning.agent_jobs import JUDGING, RunRecord
from zsnapdb.planning.health.objectives import LACKING_AGENT_HINT
from zsnapdb.report.view import Part, Table, TabularView, View


class PauseView(View, kind="agent-pause", document=AgentPauseDocument):
    """A pause that the command started or ended."""

    instance: str
    until: datetime | None

    def text(self) -> str:
        if self.until is None:
            return "the pause has ended"
        return f"no job of {self.instance} begins before {_time(self.until)}"


class AgentRunView(View, kind="agent-run", document=AgentRunDocument, read_from="ran"):
    """A job that a person started immediately."""

    ran: RanJob

    def text(self) -> str:
        warns = " (warnings)" if self.ran.exit_code == 1 and self.ran.name.kind in JUDGING else ""
        return f"{self.ran.name} ended with {self.ran.exit_code}{warns}; what it printed is in {self.ran.log}"


class AgentView(TabularView, kind="agent", document=AgentDocument, read_from="overview"):
    """The state of the agent, with the last and the next run of each job."""

    overview: AgentOverview

    def parts(self) -> Sequence[Part]:
        state = "the agent runs" if self.overview.is_running else "no agent runs on this host"
        rows = [
            (str(job.job.name), _time(job.last.started if job.last else None), _run_result(job.last), self._next(job))
            for job in self.overview.jobs
        ]
        pauses = [
            f"paused        {name or 'the host'} until {_time(pause.until)}: {pause.reason}"
            for name, pause in self.overview.pauses
        ]
        held = [f"held back     {name}: {reason}" for name, reason in sorted(self.overview.held.items())]
        noted = [f"NOTE          {self.overview.difference}"] if self.overview.difference else []
        hint = [f"hint: {LACKING_AGENT_HINT}"] if self.overview.is_lacking else []
        return [
            state,
            *hint,
            *noted,
            Table(("JOB", "LAST RUN", "RESULT", "NEXT RUN"), rows, "no job is configured"),
            *pauses,
            *held,
        ]

    def _next(self, job: JobOverview) -> str:
        if not self.overview.is_running:
            return "no agent"
        return _time(job.next) if job.next is not None else "continuous"


def _time(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC" if time is not None else "never"


def _run_result(last: RunRecord | None) -> str:
    if last is None:
        return ""
    if last.finished is None:
        return "running"
    took = format_duration((last.finished - last.started).total_seconds())
    if last.exit_code is None:
        return f"interrupted after {took}"
    if last.exit_code == BusyError.exit_code:
        return "another run was active"
    again = f", {last.failures} in a row" if last.failures > 1 else ""
    good = "warnings" if last.exit_code else "good"
    return f"{good}, {took}" if not last.failures else f"FAILED with {last.exit_code}, {took}{again}"


class NotifiedView(View, kind="notified", document=NotifiedDocument):
    """The targets of a message, and the targets to which the message could not be delivered."""

    targets: Sequence[str]
    failed: Sequence[str]

    def text(self) -> str:
        if not self.targets:
            return "every target that it concerns was told"
        return "\n".join(f"{name:<16}{'FAILED' if name in self.failed else 'arrived'}" for name in self.targets)
