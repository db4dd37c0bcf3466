"""What the agent did and will do, read from its files: right also when it does not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from zsnapdb.agent import running
from zsnapdb.agent.held import held_back
from zsnapdb.agent.records import Records
from zsnapdb.agent.schedule import Schedule
from zsnapdb.base.errors import BusyError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.exclusion import exclusive
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent.jobs import HOST, PlannedJob, jobs_of
from zsnapdb.planning.agent.runs import PauseRecord, RunRecord

LOCK = "agent"
"""The lock of this host that the agent holds."""


@dataclass(frozen=True)
class JobOverview:
    """A job, its last run (None: none is known), and the next time of its schedule (None: it runs all the time)."""

    job: PlannedJob
    last: RunRecord | None
    next: datetime | None


@dataclass(frozen=True)
class AgentOverview:
    """The jobs of the agent, the pauses that are not over, and whether an agent runs on this host.

    A pause of no instance is that of the host. `held` are the instances of which no job begins now, each with the
    reason. `difference` says how the configuration of the running agent differs from the file that was asked about,
    "" if it does not.
    """

    is_running: bool
    jobs: tuple[JobOverview, ...]
    pauses: tuple[tuple[str | None, PauseRecord], ...]
    held: Mapping[str, str]
    difference: str


def overview(settings: Settings, file: Path, host: Host) -> AgentOverview:
    """Return what the agent's files say now. `settings` are those of the configuration file."""
    records, now = Records(settings.agent.state), host.now()
    jobs = []
    for job in jobs_of(settings):
        following = Schedule.of(job.schedule, job.timezone).after(now) if job.schedule is not None else None
        jobs.append(JobOverview(job, records.run(job.name), following))
    known = ((name, records.pause(name or HOST)) for name in (*sorted(settings.instance), None))
    pauses = tuple((name, pause) for name, pause in known if pause is not None and pause.until > now)
    is_running, noted = _is_running(host), running.noted(host)
    differ = running.difference(noted, settings, file) if is_running and noted is not None else ""
    return AgentOverview(is_running, tuple(jobs), pauses, held_back(settings), differ)


def _is_running(host: Host) -> bool:
    try:
        with exclusive(LOCK, doing="looking for the agent", folder=host.run):
            return False
    except BusyError:
        return True
