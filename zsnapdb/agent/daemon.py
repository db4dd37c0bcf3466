"""The main loop of the agent, from start to stop. Only one agent runs on a host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from zsnapdb.agent import records
from zsnapdb.agent.children import Starter
from zsnapdb.agent.records import Records
from zsnapdb.agent.schedule import Schedule
from zsnapdb.agent.supervisor import Supervisor
from zsnapdb.agent.web import Listener, Pages
from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.base.program_start import Stop
from zsnapdb.base.service_manager import notify
from zsnapdb.config.settings import InstanceSettings, Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.host.agent_presence import LOCK
from zsnapdb.planning.agent_jobs import JobKind, JobName, jobs_of
from zsnapdb.planning.health.objectives import ShortLimit, archive_short_limits, schedule_short_limits

_PATIENCE = 50.0
"""Seconds within which jobs must end when the agent stops. The systemd unit gives the agent a minute."""


class Reload(Protocol):
    """A request to read the configuration again."""

    def take(self) -> bool:
        """Return whether a request arrived since the last call."""


@dataclass(frozen=True)
class ConfigurationFile:
    """The configuration of the agent. Each call of `load` reads the file."""

    path: Path
    load: Callable[[], Settings]


def serve(
    file: ConfigurationFile, starter: Starter, host: Host, stop: Stop, reload: Reload, tell: Callable[[str], None]
) -> None:
    """Run the configured jobs until a stop is requested.

    Each turn of the loop notifies systemd's watchdog, unless a job has been stopped and killed but still does not end.
    So systemd restarts the service if the agent hangs or cannot end a job.

    Raises:
        ConfigError: the configuration has no job for the agent
        BusyError: another agent runs on this host
    """
    settings = file.load()
    if not jobs_of(settings):
        raise ConfigError(
            "the configuration has no job for the agent", hint="add one, such as backup, in [instance.NAME.agent]"
        )
    pages = Pages(settings, host)
    listener = Listener(pages.answers)
    with exclusive(LOCK, doing="the agent of this host", folder=host.run), contextlib.ExitStack() as ending:
        ending.callback(listener.close)
        listener.use(settings.agent.http)
        ending.callback(starter.close)
        supervisor = Supervisor(settings, Records(settings.agent.state), starter.start, host.now, tell)
        ending.callback(records.forget, host)
        _note(settings, file, host, tell)
        notify("READY=1")
        while not stop.is_set():
            if reload.take() and _reload(supervisor, file, tell):
                pages.settings = supervisor.settings
                _note(supervisor.settings, file, host, tell)
                _listen(listener, supervisor.settings, tell)
            seconds = supervisor.turn()
            starter.tidy()
            if not supervisor.is_stuck:
                notify("WATCHDOG=1")
                pages.turned()
            stop.wait(seconds)
        notify("STOPPING=1")
        tell("the agent ends")
        # The stop is already set, so `stop.wait` would return immediately.
        supervisor.end(time.sleep, _PATIENCE)


def _listen(listener: Listener, settings: Settings, tell: Callable[[str], None]) -> None:
    """Open, change or close the HTTP port. If this fails, jobs continue, and the next reload tries again."""
    try:
        listener.use(settings.agent.http)
    except ConfigError as error:
        tell(f"the agent cannot answer by HTTP as [agent.http] says: {error}")


def _note(settings: Settings, file: ConfigurationFile, host: Host, tell: Callable[[str], None]) -> None:
    try:
        records.note(settings, file.path, host)
    except (OSError, PreflightError) as error:
        tell(f"what the agent runs with cannot be written down for `zsnapdb agent status`: {error}")


def _reload(supervisor: Supervisor, file: ConfigurationFile, tell: Callable[[str], None]) -> bool:
    """Read the configuration again. Return whether the new configuration is used.

    If the new configuration has errors, the agent keeps the previous configuration.
    """
    try:
        supervisor.use(file.load())
    except ConfigError as error:
        tell(f"the configuration stays as it was: {error}")
        return False
    tell("the configuration was read again")
    return True


_MOST = 400
"""The number of future runs of a schedule that are checked."""


def check_schedules(settings: Settings, now: datetime) -> None:
    """Check that every schedule is valid, and that the schedules can meet the limit of every objective.

    Raises ConfigError if a schedule is invalid or a limit is too short. The error lists every limit that is too short,
    with the shortest possible limit.
    """
    schedules = {
        job.name: (Schedule.of(job.schedule, job.timezone), job.schedule.jitter)
        for job in jobs_of(settings)
        if job.schedule is not None
    }
    problems = [
        f"[instance.{name}.objectives] {problem}"
        for name, instance in settings.instance.items()
        for problem in _short_limits(name, instance, schedules, now)
    ]
    if problems:
        raise ConfigError("; ".join(problems), hint="raise the limit, or run the job more often")


def _short_limits(
    name: str, instance: InstanceSettings, schedules: Mapping[JobName, tuple[Schedule, float]], now: datetime
) -> Iterator[ShortLimit]:
    objectives = instance.objectives
    yield from archive_short_limits(objectives, instance.binlog.interval)
    for key, limit, kinds in (
        ("backup_age", objectives.backup_age, (JobKind.BACKUP, JobKind.FULL)),
        ("drill_age", objectives.drill_age, (JobKind.DRILL,)),
        ("verify_age", objectives.verify_age, (JobKind.VERIFY, JobKind.DEEP_VERIFY)),
    ):
        # Cron or timers may run jobs that the agent does not run.
        known = {kind: schedules[JobName(name, kind)] for kind in kinds if JobName(name, kind) in schedules}
        if known and limit is not None:
            pauses = {kind: _longest_pause(schedule, now) + jitter for kind, (schedule, jitter) in known.items()}
            often = min(pauses, key=lambda kind: pauses[kind])
            yield from schedule_short_limits(key, limit, f"the agent's job {often.value}", pauses[often])


def _longest_pause(schedule: Schedule, now: datetime) -> float:
    """Return the longest time in seconds between two consecutive times of the schedule.

    The result is 0 if the schedule has fewer than two times.
    """
    times, at = list[datetime](), now
    while len(times) <= _MOST and (following := schedule.after(at)) is not None:
        times.append(following)
        at = following
    return max(((later - earlier).total_seconds() for earlier, later in pairwise(times)), default=0.0)
