"""Objectives, states, drills and evidence of instances, as pages show them. The functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from zsnapdb.base.quantities import format_duration
from zsnapdb.documents import api
from zsnapdb.serve.charts import PlotPoint, TimedValue, Timeline, TimeSpan, line, plot, timeline
from zsnapdb.serve.page_rows import Document, Facts, moment, read, time_of_set

_MOST_SPANS = 20
_MOST_CHOICES = 200
_MOST_KINDS = 8
_MOST_OF_KIND = 40
_BROKEN, _WARNING = "broken", "warning"
"""Verdicts that `zsnapdb status` reports."""
_PASSED = "passed"
"""The outcome of a drill that found no problem."""


@dataclass(frozen=True)
class ObjectiveRow:
    """An objective of an instance at a given time."""

    instance: str
    told: api.PublicObjective
    now: datetime

    @property
    def broken_since(self) -> datetime | None:
        """The time since which the objective is missed: its reference time plus its limit (None if unknown)."""
        judged = moment(self.told.since or "")
        if self.told.verdict != _BROKEN or judged is None or self.told.limit_seconds is None:
            return None
        try:
            since = judged + timedelta(seconds=self.told.limit_seconds)
        except OverflowError:
            return None
        return since if since <= self.now else None

    @property
    def for_how_long(self) -> str:
        since = self.broken_since
        return format_duration((self.now - since).total_seconds()) if since is not None else ""


@dataclass(frozen=True)
class ObjectivesCard:
    """All objectives: missed objectives, warnings, and the instances whose state is unknown."""

    broken: tuple[ObjectiveRow, ...]
    warnings: tuple[ObjectiveRow, ...]
    unknown: tuple[api.InstanceObjectives, ...]
    instances: tuple[api.InstanceObjectives, ...]

    @property
    def is_red(self) -> bool:
        """Whether a person must act. This includes an unknown state, because an objective may be missed."""
        return bool(self.broken or self.unknown)

    def verdict(self, instance: str) -> str:
        """Return the verdict on an instance in one or two words."""
        found = next((one for one in self.instances if one.instance == instance), None)
        if found is None or found.verdict is None:
            return "not known"
        return found.verdict if found.objectives else "none configured"


def objectives_of(document: Document, now: datetime) -> ObjectivesCard:
    """Return the objectives in an answer. The objectives that have been missed for the longest time come first."""
    told = read(api.ObjectivesDocument, document).instances
    rows = [ObjectiveRow(one.instance, objective, now) for one in told for objective in one.objectives]
    rows.sort(key=lambda row: (row.broken_since or now, row.instance))
    return ObjectivesCard(
        tuple(row for row in rows if row.told.verdict == _BROKEN),
        tuple(row for row in rows if row.told.verdict == _WARNING),
        tuple(one for one in told if one.verdict is None),
        told,
    )


@dataclass(frozen=True)
class SpanRow:
    """A period in which either every point in time can be restored (`reason` is "") or none (`reason` explains why)."""

    begin: str
    end: str
    reason: str

    @property
    def is_moment(self) -> bool:
        """Whether only the backup's own state can be restored, because no archived binlogs follow the backup."""
        return self.begin == self.end and not self.reason


@dataclass(frozen=True)
class PointsCard:
    """The states that clones of an instance can have, newest first.

    `left_out` is the number of points that are not listed. `sets` contains the snapshot sets on this host; `backups`
    contains the backups that are only in the repository.
    """

    instance: str
    at: str
    picture: Timeline | None
    spans: tuple[SpanRow, ...]
    left_out: int
    sets: tuple[str, ...]
    backups: tuple[str, ...]


def points_of(document: Document, now: datetime) -> PointsCard:
    """Return the states in an answer."""
    told = read(api.PointsDocument, document)
    rows = [SpanRow(one.begin, one.to, "") for one in told.recoverable]
    rows += [SpanRow(one.begin, one.to, one.reason) for one in told.gaps]
    rows.sort(key=lambda row: row.begin, reverse=True)
    # The answer lists snapshot sets and backups oldest first, not in the order of their ids.
    backups = [one for part in told.recoverable for one in part.backups][::-1]
    sets = [one.id for one in told.sets][::-1]
    spans = [(moment(row.begin), moment(row.end), bool(row.reason)) for row in rows]
    known = [TimeSpan(begin, end, is_gap) for begin, end, is_gap in spans if begin is not None and end is not None]
    here = frozenset(sets)
    marks = [time for time in (time_of_set(one) for one in sets) if time is not None]
    return PointsCard(
        told.instance,
        told.at,
        timeline(known, marks, moment(told.at) or now),
        tuple(rows[:_MOST_SPANS]),
        max(0, len(rows) - _MOST_SPANS),
        tuple(sets[:_MOST_CHOICES]),
        tuple([one for one in backups if one not in here][:_MOST_CHOICES]),
    )


@dataclass(frozen=True)
class StepPlot:
    """The durations of one kind of step over time, in seconds.

    `newest` is None if the newest drill had no such step.
    """

    kind: str
    newest: float | None
    most: float
    points: tuple[PlotPoint, ...]
    line: str


@dataclass(frozen=True)
class DrillRow:
    """A drill, and the seconds that each kind of step took (None if the drill had no step of that kind)."""

    told: api.PublicDrill
    steps: tuple[float | None, ...]

    @property
    def has_passed(self) -> bool:
        return self.told.outcome == _PASSED


@dataclass(frozen=True)
class DrillsCard:
    """Drills of an instance, newest first, and the durations of their steps over time.

    `left_out` is the number of kinds of steps without a plot.
    """

    kinds: tuple[str, ...]
    rows: tuple[DrillRow, ...]
    plots: tuple[StepPlot, ...]
    begin: str
    end: str
    left_out: int


def drills_of(document: Document) -> DrillsCard:
    """Return the drills in an answer. The kinds of steps that took longest come first."""
    drills = read(api.PublicDrills, document).drills
    seconds = [_by_kind(one) for one in drills]
    total: dict[str, float] = {}
    for one in seconds:
        for kind, value in one.items():
            total[kind] = total.get(kind, 0.0) + value
    kinds = tuple(sorted(total, key=lambda kind: (-total[kind], kind)))
    shown = kinds[:_MOST_KINDS]
    rows = [DrillRow(one, tuple(steps.get(kind) for kind in shown)) for one, steps in zip(drills, seconds, strict=True)]
    return DrillsCard(
        shown,
        tuple(reversed(rows)),
        tuple(_step_plot(kind, drills, seconds) for kind in shown),
        drills[0].finished if drills else "",
        drills[-1].finished if drills else "",
        len(kinds) - len(shown),
    )


def _by_kind(drill: api.PublicDrill) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for step in drill.steps:
        kind = step.kind[:_MOST_OF_KIND]
        found[kind] = found.get(kind, 0.0) + step.seconds
    return found


def _step_plot(kind: str, drills: Sequence[api.PublicDrill], seconds: Sequence[Mapping[str, float]]) -> StepPlot:
    ends = [moment(one.finished) for one in drills]
    known = [end for end in ends if end is not None]
    values = [
        TimedValue(end, steps[kind], drill.outcome == _PASSED)
        for drill, steps, end in zip(drills, seconds, ends, strict=True)
        if end is not None and kind in steps
    ]
    points = plot(values, min(known), max(known)) if known else ()
    most = max(steps.get(kind, 0.0) for steps in seconds)
    return StepPlot(kind, seconds[-1].get(kind), most, points, line(points))


class _Who(Facts):
    account: str
    subject: str = ""
    issuer: str = ""
    host: str = ""


class RecordRow(Facts):
    """A record of an evidence log."""

    number: int
    job: str
    command: str
    about: str = ""
    who: _Who
    finished: str
    exit_code: int
    changes: tuple[object, ...] = ()


class DoubtfulRecord(Facts):
    """A record that is not trusted, and the reason."""

    number: int
    problem: str


@dataclass(frozen=True)
class EvidenceCard:
    """Records in the order of their numbers.

    `next` is the number of the last shown record if more records follow; otherwise None.
    """

    records: tuple[RecordRow, ...]
    doubtful: tuple[DoubtfulRecord, ...]
    next: int | None


def evidence_of(document: Document) -> EvidenceCard:
    """Return the records of an evidence log in an answer."""
    told = read(api.EvidenceDocument, document)
    return EvidenceCard(
        tuple(read(RecordRow, one) for one in told.records),
        tuple(read(DoubtfulRecord, one) for one in told.not_believed),
        told.next,
    )
