"""A fleet with simulated time: engine, hosts with agents and workers, a repository, and a viewer.

The decisions are the product's own: the applied schedules, windows, a host's answers, the agent, the reads of a
repository and their verdicts. The engine and the commands are models. `events` has all that was really created.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.unit.support.agent_month import AgentMonth, MemoryRecords
from tests.unit.support.fleet_yard import FleetYard
from tests.unit.support.literal_times import literal_times
from zsnapdb.config.fleet_jobs import FleetJobsSettings
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.settings import Settings
from zsnapdb.fleet.engine_client import CATCH_UP, specification
from zsnapdb.fleet.host_job import JobRefused, JobRunner
from zsnapdb.planning.agent_jobs import JobName
from zsnapdb.planning.fleet.jobs import FleetJob, JobRequest, JobVerdict, is_final, run_id_of, verdict
from zsnapdb.planning.fleet.schedule_plan import FleetSchedule, closed_until, wanted_schedules
from zsnapdb.repository.drills import Outcome

TICK = timedelta(minutes=15)


@dataclass(frozen=True)
class Event:
    """A backup or drill, with its time by the host's clock."""

    verb: str
    instance: str
    host: str
    at: datetime
    passed: bool = True


@dataclass(frozen=True)
class GivenRecords(MemoryRecords):
    """Records in memory that a worker and an agent share."""

    times: dict[JobName, datetime] = field(default_factory=dict)

    def given(self, name: JobName) -> datetime | None:
        return self.times.get(name)

    def set_given(self, name: JobName, at: datetime) -> None:
        self.times[name] = at

    def fleet_log(self, name: JobName) -> Path:
        return self.log(name)


@dataclass(frozen=True)
class EndedChild:
    code: int

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        return

    kill = stop

    def tail(self) -> str:
        return ""

    def work(self) -> object:
        return None


@dataclass
class MonthHost:
    """A host: its agent and its worker. `name` is its present name."""

    name: str
    agent: AgentMonth
    is_up: bool = True

    def turn_off(self) -> None:
        """Cut the power."""
        self.agent.crash()
        self.is_up = False

    def turn_on(self) -> None:
        self.agent.boot()
        self.is_up = True

    def rename(self, name: str, settings: Settings) -> None:
        """Rename the host. Its disks, with the agent's records, stay."""
        self.name, self.agent.settings = name, settings

    def runner(self, month: FleetMonth) -> JobRunner:
        def start(words: Sequence[str], log: Path, run_id: str) -> EndedChild:
            return EndedChild(month.command(self, tuple(words)))

        settings = self.agent.settings
        now = lambda: month.now + self.agent.clock_error  # noqa: E731 - a clock
        return JobRunner(self.name, lambda: settings, start, {}, now, lambda: 1 << 40, lambda _: None)


@dataclass
class BegunJob:
    """A run of a schedule that has not ended."""

    job: FleetJob
    scheduled: datetime
    begun: datetime
    attempts: int = 0
    again: datetime | None = None


@dataclass
class FleetMonth:
    """The simulation. While `engine_is_away` no job starts; while `store_is_away` the repository is unreachable."""

    yard: FleetYard
    jobs: FleetJobsSettings
    objectives: dict[str, ObjectiveSettings]
    chance: random.Random
    folder: Path
    hosts: list[MonthHost] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    done: dict[str, datetime] = field(default_factory=dict)
    engine_is_away: bool = False
    running: dict[str, BegunJob] = field(default_factory=dict)
    runs: list[BegunJob] = field(default_factory=list)
    drill_fails: bool = False
    _records: dict[Path, GivenRecords] = field(default_factory=dict)
    _engine_knows: datetime | None = None
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    @property
    def store_is_away(self) -> bool:
        return not (self.yard.folder / "here").exists()

    def records(self, state: Path) -> GivenRecords:
        """Return the records of the host whose agent keeps them there."""
        return self._records.setdefault(state, GivenRecords(self.folder))

    def host(self, name: str, settings: Settings) -> MonthHost:
        """Add a host, whose agent starts now."""
        agent = AgentMonth(settings, self.records(settings.agent.state), self.now)
        made = MonthHost(name, agent)
        agent.answer = lambda words: (0.0, self.command(made, words))
        agent.boot()
        self.hosts.append(made)
        return made

    def command(self, host: MonthHost, words: tuple[str, ...]) -> int:
        """Execute a command, and return its exit code. A run that was already executed does nothing."""
        verb, instance = words[:2]
        run = words[words.index("--once") + 1] if "--once" in words else ""
        if self.store_is_away:
            return 6
        at = (self.now + host.agent.clock_error).replace(second=0, microsecond=0)
        if run in self.done and self.done[run] <= at + timedelta(minutes=5):
            return 0
        before, self.yard.now = self.yard.now, at
        passed = True
        if verb == "backup":
            self.yard.backup(instance, 0, host=host.name, objectives=self.objectives[instance])
        else:
            passed = not self.drill_fails
            self.yard.drill(instance, 0, Outcome.PASSED if passed else Outcome.FAILED, host=host.name)
        self.yard.now = before
        self.events.append(Event(verb, instance, host.name, at, passed))
        if run:
            self.done[run] = at
        return 0 if passed else 11

    def tick(self) -> None:
        """Let a quarter of an hour pass."""
        self.now += TICK
        if not self.engine_is_away:
            known = self._engine_knows or self.now - TICK
            after, self._engine_knows = max(known, self.now - CATCH_UP), self.now
            for schedule in wanted_schedules(self.jobs):
                self._begin(schedule, after)
            for name, begun in list(self.running.items()):
                if self._go_on(begun):
                    del self.running[name]
        for host in self.hosts:
            host.agent.time = self.now
            if host.is_up and host.agent.agent is not None:
                host.agent.agent.turn()

    def _begin(self, schedule: FleetSchedule, after: datetime) -> None:
        for scheduled in literal_times(specification(schedule, self.now), after, self.now, TICK):
            # While a run of the same job is in progress, no other starts.
            if schedule.schedule_id not in self.running:
                begun = BegunJob(schedule.job, scheduled, self.now)
                self.running[schedule.schedule_id] = begun
                self.runs.append(begun)

    def _go_on(self, begun: BegunJob) -> bool:
        """Give the job to a host, if it is time. Return whether it has ended."""
        job = begun.job
        if self.now >= begun.begun + timedelta(seconds=job.timeout):
            return True
        if closed_until(job.windows, self.now) is not None or (begun.again is not None and self.now < begun.again):
            return False
        able = [
            host
            for host in self.hosts
            if host.is_up and (host.name == job.host or (job.host is None and _takes_drills(host)))
        ]
        if not able:
            return False
        begun.attempts += 1
        kind = self._answer(self.chance.choice(able), begun)
        begun.again = self.now + (TICK if kind is JobVerdict.AGAIN else timedelta())
        return is_final(kind, begun.attempts)

    def _answer(self, host: MonthHost, begun: BegunJob) -> JobVerdict:
        job = begun.job
        request = JobRequest(
            verb=job.verb,
            instance=job.instance,
            run_id=run_id_of(job.verb, job.instance, begun.scheduled),
            scheduled=begun.scheduled,
            host=job.host,
        )
        try:
            answer = asyncio.run(host.runner(self).run(request, lambda _: None))
        except JobRefused as refused:
            return refused.kind
        return verdict(answer.exit_code, answer.error, anywhere=job.host is None)


def _takes_drills(host: MonthHost) -> bool:
    return host.agent.settings.fleet is not None and host.agent.settings.fleet.drills
