"""The jobs of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from typing_extensions import TypedDict

from zsnapdb.agent.overview import AgentOverview, JobOverview
from zsnapdb.agent.run_now import RanJob
from zsnapdb.base.errors import BusyError
from zsnapdb.base.quantities import format_duration
from zsnapdb.planning.agent.jobs import HOST
from zsnapdb.planning.agent.runs import RunRecord
from zsnapdb.report.document import Dumped
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.view import View


class AgentJobFields(TypedDict):
    """A job of the agent. `instance` is null if the job is of the host; `next` if it runs all the time."""

    instance: str | None
    job: str
    next: str | None
    last: Annotated[dict[str, Any], Dumped(RunRecord, without=("format",))] | None


class PauseFields(TypedDict):
    """A pause of an instance, or of the host."""

    instance: str | None
    until: str
    reason: str


class HeldFields(TypedDict):
    """An instance of which no job begins now: its server is being replaced and is down."""

    instance: str
    reason: str


class AgentDocument(TypedDict):
    """The jobs of the agent. `difference`: how the running agent's configuration differs from the file."""

    is_running: bool
    difference: str | None
    jobs: list[AgentJobFields]
    pauses: list[PauseFields]
    held: list[HeldFields]


class AgentPauseDocument(TypedDict):
    """Until when no job of an instance begins; null: the pause has ended."""

    instance: str
    until: str | None


class AgentRunDocument(TypedDict):
    """A job of the agent that was run at once: its exit code, and the file with what it printed."""

    job: str
    exit_code: int
    log: str


@dataclass(frozen=True)
class PauseView(View):
    """A pause that begins or ends now."""

    instance: str
    until: datetime | None
    kind: ClassVar[str] = "agent-pause"

    def text(self) -> str:
        if self.until is None:
            return "the pause has ended"
        return f"no job of {self.instance} begins before {_time(self.until)}"

    def fields(self) -> AgentPauseDocument:
        return {"instance": self.instance, "until": self.until.isoformat() if self.until is not None else None}


@dataclass(frozen=True)
class AgentRunView(View):
    """A job that was run at once."""

    ran: RanJob
    kind: ClassVar[str] = "agent-run"

    def text(self) -> str:
        return f"{self.ran.name} ended with {self.ran.exit_code}; what it printed is in {self.ran.log}"

    def fields(self) -> AgentRunDocument:
        return {"job": str(self.ran.name), "exit_code": self.ran.exit_code, "log": str(self.ran.log)}


@dataclass(frozen=True)
class AgentView(TabularView):
    """Whether the agent runs, and the last and the next run of each of its jobs."""

    overview: AgentOverview
    kind: ClassVar[str] = "agent"

    def parts(self) -> Sequence[Part]:
        state = "the agent runs" if self.overview.is_running else "NO AGENT RUNS on this host"
        rows = [
            (str(job.job.name), _time(job.last.started if job.last else None), _result(job.last), _next(job))
            for job in self.overview.jobs
        ]
        pauses = [
            f"paused        {'the host' if name == HOST else name} until {_time(pause.until)}: {pause.reason}"
            for name, pause in self.overview.pauses
        ]
        held = [f"held back     {name}: {reason}" for name, reason in sorted(self.overview.held.items())]
        noted = [f"NOTE          {self.overview.difference}"] if self.overview.difference else []
        return [
            state,
            *noted,
            Table(("JOB", "LAST RUN", "RESULT", "NEXT RUN"), rows, "no job is configured"),
            *pauses,
            *held,
        ]

    def fields(self) -> AgentDocument:
        return {
            "is_running": self.overview.is_running,
            "difference": self.overview.difference or None,
            "jobs": [
                {
                    "instance": None if job.job.name.instance == HOST else job.job.name.instance,
                    "job": job.job.name.kind.value,
                    "next": job.next.isoformat() if job.next is not None else None,
                    "last": job.last.model_dump(mode="json", exclude={"format"}) if job.last is not None else None,
                }
                for job in self.overview.jobs
            ],
            "pauses": [
                {"instance": None if name == HOST else name, "until": pause.until.isoformat(), "reason": pause.reason}
                for name, pause in self.overview.pauses
            ],
            "held": [{"instance": name, "reason": reason} for name, reason in sorted(self.overview.held.items())],
        }


def _time(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC" if time is not None else "never"


def _next(job: JobOverview) -> str:
    return _time(job.next) if job.next is not None else "continuous"


def _result(last: RunRecord | None) -> str:
    if last is None:
        return ""
    if last.finished is None:
        return "running"
    took = format_duration((last.finished - last.started).total_seconds())
    if last.exit_code is None:
        return f"interrupted after {took}"
    if last.exit_code == BusyError.exit_code:
        return "another run was at work"
    again = f", {last.failures} in a row" if last.failures > 1 else ""
    return f"good, {took}" if not last.failures else f"FAILED with {last.exit_code}, {took}{again}"
