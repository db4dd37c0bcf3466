"""An agent on a host with simulated time: its clock, its waits, and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from zsnapdb.agent.records import Records
from zsnapdb.agent.supervisor import Supervisor
from zsnapdb.config.settings import Settings
from zsnapdb.planning.agent_jobs import JobName, PauseRecord, RunRecord


@dataclass
class FakeRun:
    """A job that takes some seconds and ends with an exit code."""

    month: AgentMonth
    words: tuple[str, ...]
    began: datetime
    seconds: float
    code: int
    ended: datetime | None = None
    is_stopped: bool = False

    def poll(self) -> int | None:
        if self.ended is None and (self.is_stopped or self.month.time >= self.began + timedelta(seconds=self.seconds)):
            self.ended = self.month.time
        # The archive exits with 0 when it is stopped.
        stopped = 0 if self.words[0] == "binlog" else 130
        return None if self.ended is None else stopped if self.is_stopped else self.code

    def stop(self) -> None:
        if self.words in self.month.deaf:
            self.month.deaf.remove(self.words)
            return
        self.is_stopped = self.words not in self.month.stubborn | self.month.immortal

    def kill(self) -> None:
        self.is_stopped = self.words not in self.month.immortal

    def tail(self) -> str:
        return "printed"

    def work(self) -> object:
        return None if self.words in self.month.hanging else self.month.time


@dataclass(frozen=True)
class MemoryRecords(Records):
    """Records in memory that survive the agent: a month has thousands of runs."""

    runs: dict[JobName, RunRecord] = field(default_factory=dict)
    pauses: dict[str, PauseRecord] = field(default_factory=dict)

    def run(self, name: JobName) -> RunRecord | None:
        return self.runs.get(name)

    def set_run(self, name: JobName, record: RunRecord) -> None:
        self.runs[name] = record

    def log(self, name: JobName) -> Path:
        return self.folder

    def pause(self, instance: str) -> PauseRecord | None:
        return self.pauses.get(instance)

    def set_pause(self, instance: str, pause: PauseRecord | None) -> None:
        if pause is not None:
            self.pauses[instance] = pause


@dataclass
class AgentMonth:
    """The simulation: `time` is real time; the host's clock is `clock_error` ahead of it."""

    settings: Settings
    records: Records
    time: datetime
    answer: Callable[[tuple[str, ...]], tuple[float, int]] = lambda words: (60.0, 0)
    """The duration in seconds and the exit code of a run."""
    clock_error: timedelta = timedelta()
    runs: list[FakeRun] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    agent: Supervisor | None = None
    hanging: frozenset[tuple[str, ...]] = frozenset()
    """Jobs that do nothing while they run."""
    stubborn: frozenset[tuple[str, ...]] = frozenset()
    """Jobs that do not end when they are stopped, only when they are killed."""
    immortal: frozenset[tuple[str, ...]] = frozenset()
    """Jobs that cannot be ended."""
    deaf: set[tuple[str, ...]] = field(default_factory=set)
    """Jobs that lose the first stop request."""
    held: dict[str, str] = field(default_factory=dict)
    """Instances whose servers are being replaced."""

    def start(self, words: Sequence[str], log: Path, run_id: str) -> FakeRun:
        seconds, code = self.answer(tuple(words))
        run = FakeRun(self, tuple(words), self.time, seconds, code)
        self.runs.append(run)
        return run

    def boot(self) -> None:
        begin = self.time
        self.agent = Supervisor(
            self.settings,
            self.records,
            self.start,
            lambda: self.time + self.clock_error,
            self.said.append,
            lambda: (self.time - begin).total_seconds(),
            held=lambda _: dict(self.held),
        )

    def crash(self) -> None:
        """Kill the agent and all its jobs, as a power cut does."""
        for run in self.runs:
            if run.ended is None:
                run.is_stopped = True
                run.poll()
        self.agent = None

    def live(self, **length: float) -> None:
        """Let time pass."""
        end = self.time + timedelta(**length)
        while self.time < end:
            wait = self.agent.turn() if self.agent is not None else (end - self.time).total_seconds()
            self.time = min(end, self.time + timedelta(seconds=max(wait, 0.05)))

    def started(self, *words: str) -> list[datetime]:
        """Return the start times of runs with these arguments, in real time."""
        return [run.began for run in self.runs if run.words == words]
