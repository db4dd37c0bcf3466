"""Summarises runs by day: successful runs, and the longest pauses between backups and between drills. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.health.objectives import Objective


@dataclass(frozen=True)
class CompletedRun:
    """A finished run: its job, the time of its end (UTC), its duration in seconds, and its exit code."""

    job: str
    finished: datetime
    seconds: float
    exit_code: int

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class ReportedDay:
    """The summary of a day (UTC).

    The field `longest_without_backup` is the greatest age in seconds that the newest backup reached on this day; None
    if there was no backup yet. The field `longest_without_drill` is the same for the newest drill that passed.
    """

    day: date
    good: int
    failed: int
    backups: int
    drills: int
    failed_drills: int
    longest_without_backup: float | None
    longest_without_drill: float | None = None


@dataclass(frozen=True)
class KeptObjective:
    """An age objective on one day: the greatest age on that day, and the limit, both in seconds.

    The field `longest` is None if there was no run yet.
    """

    objective: Objective
    limit: float
    longest: float | None

    @property
    def is_kept(self) -> bool:
        return self.longest is not None and self.longest <= self.limit


@dataclass(frozen=True)
class JudgedDay:
    """A day, and for each age objective whether it was met on that day."""

    day: ReportedDay
    objectives: tuple[KeptObjective, ...]


def judge_day(day: ReportedDay, objectives: ObjectiveSettings) -> JudgedDay:
    """Return the day with the objectives for the ages of the newest backup and the newest drill.

    Recorded runs can prove only these two objectives for a whole day.
    """
    ages = (
        (Objective.BACKUP_AGE, objectives.backup_age, day.longest_without_backup),
        (Objective.DRILL, objectives.drill_age, day.longest_without_drill),
    )
    kept = tuple(KeptObjective(kind, limit, longest) for kind, limit, longest in ages if limit is not None)
    return JudgedDay(day, kept)


def days(runs: Sequence[CompletedRun], first: date, last: date, now: datetime) -> tuple[ReportedDay, ...]:
    """Return each day from `first` to `last`, including days without runs, but without days after `now`."""
    return tuple(_days(sorted(runs, key=lambda run: run.finished), first, last, now))


def _days(runs: Sequence[CompletedRun], first: date, last: date, now: datetime) -> Iterator[ReportedDay]:
    backups = [run.finished for run in runs if run.job == "backup" and run.is_good]
    passed = [run.finished for run in runs if run.job == "drill" and run.is_good]
    day = first
    while day <= last:
        begin = datetime.combine(day, time(), UTC)
        end = min(begin + timedelta(days=1), now)
        if begin >= now:
            return
        own = [run for run in runs if begin <= run.finished < end]
        drills = [run for run in own if run.job == "drill"]
        yield ReportedDay(
            day=day,
            good=sum(run.is_good for run in own),
            failed=sum(not run.is_good for run in own),
            backups=sum(run.job == "backup" and run.is_good for run in own),
            drills=len(drills),
            failed_drills=sum(not drill.is_good for drill in drills),
            longest_without_backup=_longest(backups, begin, end),
            longest_without_drill=_longest(passed, begin, end),
        )
        day += timedelta(days=1)


def _longest(done: Sequence[datetime], begin: datetime, end: datetime) -> float | None:
    before = [moment for moment in done if moment < begin][-1:]
    within = [moment for moment in done if begin <= moment < end]
    if not before and not within:
        return None
    moments = [*before, *within, end]
    return max((later - earlier).total_seconds() for earlier, later in pairwise(moments))
