"""The supervisor of the agent, which starts due jobs, waits until they end, and stores their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from zsnapdb.agent.children import Child, StartChild
from zsnapdb.agent.records import Records, notify_of_killed
from zsnapdb.agent.schedule import Schedule
from zsnapdb.base import run_context
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.services import FleetVerb
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.steps import move_state, restore_journal
from zsnapdb.planning.agent_jobs import (
    ASIDE,
    HOST,
    JUDGING,
    DueJob,
    JobKind,
    JobName,
    PlannedJob,
    RunRecord,
    before_clock,
    find_retry_time,
    is_good,
    is_later,
    jitter,
    jobs_of,
    left_to_fleet,
    starts_at,
)
from zsnapdb.planning.fleet.jobs import is_shared, run_id_of
from zsnapdb.planning.health.facts import ExchangedServer


def suspended_instances(settings: Settings) -> Mapping[str, str]:
    """Return the instances whose jobs must wait, each with the reason and, if possible, the commands that end the wait.

    While zsnapdb prepares a restore in place, production and its jobs continue. If the state of an instance cannot be
    read, its jobs do not wait: a failing job is reported, but a waiting job is not.
    """
    reasons = {}
    for name in settings.instance:
        try:
            reason = _reason(Instance.of(settings, name))
        except (ZsnapdbError, OSError):
            continue
        if reason:
            reasons[name] = reason
    return reasons


def _reason(instance: Instance) -> str:
    for exchange in restore_journal.under_way(instance):
        if exchange.server is ExchangedServer.AWAY:
            return "its server is down while a rewind, or a restore in its place, is running"
        if exchange.server is ExchangedServer.LEFT:
            return f"its server is down, and a rewind, or a restore in its place, did not end: {exchange.hint()}"
    if move_state.is_moved(instance.settings.socket):
        return "its server is down, and the move of its files did not end: run the same `zsnapdb setup` command again"
    return ""


_KEPT_AGAIN = 1.0
"""Seconds after which a failed write of a record is repeated."""
LONGEST_WAIT = 10.0
"""Maximum number of seconds between two turns. Each turn detects ended jobs, pauses, and changes of the clock."""
_CANNOT_START = 127
_POLL = 0.2
UNWIND = 300.0
"""Seconds within which a stopped job must release its locks, remove incomplete objects and end."""


@dataclass
class _Running:
    child: Child
    record: RunRecord
    stop_at: float | None
    """The monotonic time at which the agent will stop the job; None if it will not."""
    work: object
    """The work of the job when the agent last checked it."""
    worked_at: float
    """The time of the last change of `work`, by the monotonic clock."""
    stopped_at: float | None = None
    is_replaced: bool = False
    """Whether the job was stopped to be restarted with another configuration."""


@dataclass
class Supervisor:
    """Runs the jobs of a configuration. The function `tell` gets a message when a job starts or ends.

    The function `now` returns the time of day (UTC), which can jump; `steady` returns the seconds of a monotonic clock.
    """

    settings: Settings
    records: Records
    start: StartChild
    now: Callable[[], datetime]
    tell: Callable[[str], None]
    steady: Callable[[], float] = time.monotonic
    notify: Callable[[Settings, JobName, str, datetime, Callable[[str], None]], None] = notify_of_killed
    held: Callable[[Settings], Mapping[str, str]] = suspended_instances
    """Returns the instances whose jobs must not start, each with the reason."""
    _known: dict[JobName, RunRecord] = field(init=False, default_factory=dict)
    _seen: dict[JobName, RunRecord] = field(init=False, default_factory=dict)
    """The records as they were last read from the files or written to them."""
    _unkept: set[JobName] = field(init=False, default_factory=set)
    """The jobs whose record could not be written yet, so that readers of the files see an older record."""
    _following: dict[JobName, tuple[datetime, datetime | None]] = field(init=False, default_factory=dict)
    _is_ending: bool = field(init=False, default=False)
    _jobs: Mapping[JobName, PlannedJob] = field(init=False, default_factory=dict)
    _schedules: Mapping[JobName, Schedule] = field(init=False)
    _begun: dict[JobName, datetime] = field(init=False, default_factory=dict)
    _running: dict[JobName, _Running] = field(init=False, default_factory=dict)
    _held: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.use(self.settings)
        for name in self._jobs:
            record = self._record(name)
            if record is not None and record.is_running:
                self._keep(name, record.ended(self.now(), None, record.tail, is_good=False))

    def use(self, settings: Settings) -> None:
        """Use this configuration. Raises ConfigError if a schedule is invalid.

        Running jobs continue, except archive jobs whose settings changed.
        """
        jobs = {job.name: job for job in jobs_of(settings)}
        schedules = {
            name: Schedule.of(job.schedule, job.timezone) for name, job in jobs.items() if job.schedule is not None
        }
        before, old = self._jobs, self.settings
        self.settings, self._jobs, self._schedules = settings, jobs, schedules
        self._following.clear()
        now = self.now()
        # If a schedule is new, its times in the past do not count as missed.
        same = {name for name, job in jobs.items() if before.get(name) == job}
        self._begun = {name: self._begun[name] if name in same else now for name in jobs}
        for name, running in self._running.items():
            # All other jobs read the configuration when they start.
            if name.kind is JobKind.ARCHIVE and (name not in jobs or _differs(name.instance, old, settings)):
                running.is_replaced = True
                self._stop(name, running, "its configuration has changed")

    @property
    def running(self) -> tuple[JobName, ...]:
        return tuple(self._running)

    @property
    def is_stuck(self) -> bool:
        """Whether any job that was stopped and killed still runs ten minutes after the stop."""
        limit = self.steady() - 2 * UNWIND
        return any(run.stopped_at is not None and run.stopped_at <= limit for run in self._running.values())

    def turn(self) -> float:
        """Store the results of ended jobs, and start due jobs. Return the seconds until the next turn."""
        now = self.now()
        for name in sorted(self._unkept):
            self._keep(name, self._known[name])
        self._collect(now)
        self._look_at_held()
        busy = {name.instance for name in self._running if name.kind not in ASIDE}
        pauses = {
            name: pause for name in (*self.settings.instance, HOST) if (pause := self.records.pause_at(name, now))
        }
        for due in starts_at(self._due(now), busy, self._held, pauses, now):
            settings = self._jobs[due.name].schedule
            timeout = settings.timeout if settings is not None else None
            self._run(due.name, now, self.steady() + timeout if timeout is not None else None)
        for name, job in self._jobs.items():
            if job.is_continuous and name not in self._running and name.instance not in self._held:
                again = find_retry_time(self._record(name), is_continuous=True)
                if (again is None or again <= now) and name.instance not in pauses:
                    self._run(name, now, None)
        # A due job that is not started waits until another job or a pause ends.
        waits = [(job.begins - now).total_seconds() for job in self._due(now) if job.begins > now]
        return min([_KEPT_AGAIN if self._unkept else LONGEST_WAIT, *waits])

    def end(self, wait: Callable[[float], object], patience: float) -> None:
        """Stop every job, and store the results. A job that does not end within `patience` seconds is killed.

        The next run of a killed job continues its work.
        """
        self._is_ending, deadline = True, self.steady() + patience
        for name, running in self._running.items():
            self._stop(name, running, "the agent ends")
        while self._running:
            self._collect(self.now())
            if self._running and self.steady() >= deadline:
                for running in self._running.values():
                    running.child.kill()
            if self._running:
                wait(_POLL)

    def _look_at_held(self) -> None:
        """Find the instances whose jobs must not start now, and log the changes."""
        before, self._held = self._held, self.held(self.settings)
        for name in sorted(self._held):
            if self._held[name] != before.get(name):
                self.tell(f"no job of {name} begins: {self._held[name]}")
        for name in sorted(set(before) - set(self._held)):
            self.tell(f"jobs of {name} begin again")

    def _due(self, now: datetime) -> list[DueJob]:
        """Return the next run of each scheduled job that is not running."""
        due = []
        for name in self._schedules:
            if name in self._running:
                continue
            self._begun[name] = min(now, self._begun[name])
            record = self._record(name)
            again = find_retry_time(record, is_continuous=False)
            if again is not None:
                due.append(DueJob(name, again, again))
                continue
            # One run suffices for all times that have passed in the meantime.
            scheduled = self._next(name, record.scheduled if record is not None else self._begun[name])
            settings = self._jobs[name].schedule
            if scheduled is not None and settings is not None:
                late = jitter(name, scheduled, settings.jitter) + self._left_to_fleet(name, record)
                due.append(DueJob(name, scheduled, scheduled + timedelta(seconds=late)))
        return due

    def _left_to_fleet(self, name: JobName, record: RunRecord | None) -> float:
        fleet = self.settings.fleet
        if fleet is None or not is_shared(name, fleet):
            return 0.0
        return left_to_fleet(record, self.records.given(name), fleet.fallback_after, self.now())

    def _run_id(self, name: JobName, now: datetime) -> str:
        """Return the id of a run that starts now.

        If the fleet may also start the job, the id contains the scheduled time.
        """
        fleet = self.settings.fleet
        if fleet is None or not is_shared(name, fleet):
            return run_context.new_run_id()
        return run_id_of(FleetVerb.BACKUP, name.instance, self._schedules[name].until(now) or now)

    def _next(self, name: JobName, served: datetime) -> datetime | None:
        """Return the next time of the job's schedule after the time `served`."""
        known = self._following.get(name)
        if known is None or known[0] != served:
            known = self._following[name] = (served, self._schedules[name].after(served))
        return known[1]

    def _run(self, name: JobName, now: datetime, stop_at: float | None) -> None:
        record = RunRecord.begin(self._record(name), self._run_id(name, now), now, now)
        try:
            child = self.start(self._words(name, record.run_id), self.records.log(name), record.run_id)
        except OSError as error:
            self.tell(f"{name} cannot be started: {error}")
            self.notify(self.settings, name, f"cannot be started: {error}", now, self.tell)
            self._keep(name, record.ended(now, _CANNOT_START, f"it cannot be started: {error}", is_good=False))
            return
        self.tell(f"{name} begins, run {record.run_id}")
        self._running[name] = _Running(child, record, stop_at, child.work(), self.steady())
        self._keep(name, record)

    def _words(self, name: JobName, run: str) -> tuple[str, ...]:
        """Return the arguments of the command.

        The option `--once` prevents a second run if the fleet may already have run the job.
        """
        fleet, own = self.settings.fleet, self._jobs[name].words
        return (*own, "--once", run) if fleet is not None and is_shared(name, fleet) else own

    def _record(self, name: JobName) -> RunRecord | None:
        """Return the last run of the job.

        A run by `zsnapdb agent run` or the fleet may be later than the run that this agent knows.
        """
        kept, known = self.records.run(name), self._known.get(name)
        if kept is not None and kept != self._seen.get(name):
            self._seen[name] = kept
            known = kept if known is None or is_later(kept, known) else known
        if known is None:
            return None
        self._known[name] = before_clock(known, self.now())
        return self._known[name]

    def _collect(self, now: datetime) -> None:
        for name, running in list(self._running.items()):
            code = running.child.poll()
            if code is None:
                self._watch(name, running)
                continue
            del self._running[name]
            good = is_good(code, warns_with_one=name.kind in JUDGING)
            self.tell(f"{name} ended with {code}")
            if code < 0:
                self.notify(self.settings, name, f"was ended by signal {-code}", now, self.tell)
            # If the agent ended a run, the job starts again immediately. A continuous job starts again even after a
            # success.
            is_cut = (self._is_ending or running.is_replaced) and (not good or name.kind is JobKind.ARCHIVE)
            known = None if is_cut else code
            self._keep(name, running.record.ended(now, known, running.child.tail(), is_good=good))

    def _watch(self, name: JobName, running: _Running) -> None:
        """Stop a run that takes too long or does nothing. Kill it if it does not end."""
        at, work = self.steady(), running.child.work()
        if work != running.work:
            running.work, running.worked_at = work, at
        if running.stopped_at is not None:
            if at >= running.stopped_at + UNWIND:
                running.child.kill()
            elif name.kind is JobKind.ARCHIVE:
                # Python sometimes loses a signal during an import, so the signal is repeated. A second signal would
                # interrupt the clean-up of other jobs, but is harmless for the archive job.
                running.child.stop()
        elif running.stop_at is not None and at >= running.stop_at:
            self._stop(name, running, "it takes longer than its timeout")
        elif at >= running.worked_at + self.settings.agent.stall:
            self._stop(name, running, f"it has done nothing for {at - running.worked_at:.0f} s")

    def _stop(self, name: JobName, running: _Running, why: str) -> None:
        self.tell(f"{name} is stopped: {why}")
        running.stopped_at = self.steady()
        running.child.stop()

    def _keep(self, name: JobName, record: RunRecord) -> None:
        """Store the record. If the disk is full, the job and the agent continue, and the next turn tries again."""
        is_new = self._known.get(name) != record or name not in self._unkept
        self._known[name] = record
        try:
            self.records.set_run(name, record)
            self._seen[name] = record
            self._unkept.discard(name)
        except OSError as error:
            self._unkept.add(name)
            if is_new:
                self.tell(f"the result of {name} cannot be kept: {error}")


def _differs(instance: str, before: Settings, after: Settings) -> bool:
    """Return whether the settings of the instance or its repository differ. Schedules are ignored."""
    if instance not in before.instance or instance not in after.instance:
        return True
    old, new = before.instance[instance], after.instance[instance]
    is_same = old.model_copy(update={"agent": new.agent}) == new
    return not is_same or before.repository[old.repository] != after.repository[new.repository]
