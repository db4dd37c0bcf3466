"""Judges the instances of a fleet from their repositories, and selects and orders the rows of the view. Pure.

`planning/health/objectives.py` judges the objectives. This module adds one judgement that only a fleet needs: whether a
host is silent.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from zsnapdb.base.errors import UsageError
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.health.facts import HealthFacts
from zsnapdb.planning.health.objectives import Health, Judgement, Objective, Verdict, judge, worst

HEARD = "heard"
"""The name of the judgement whether a host is silent."""
_CLOCKS = 300.0
"""The allowed difference between clocks, in seconds. A sign of life further in the future is ignored."""
NOT_JUDGED = ("copies", "immutable_for")
"""Objectives that the fleet view does not judge: they need another repository or a request for each object's lock."""


@dataclass(frozen=True)
class InstanceFacts:
    """The facts about an instance in a repository.

    The fields `host` and `objectives` come from the newest backup. If this backup does not record them, they are "" and
    None. The time of the newest sign of life is `heard`: a backup, a drill, an evidence record or the end of the
    archive. The first restorable point is `oldest_point`. Sizes are in bytes.
    """

    instance: str
    repository: str
    host: str
    tool_version: str
    server: str
    objectives: ObjectiveSettings | None
    heard: datetime | None
    oldest_point: datetime | None
    backups: int
    backup_bytes: int
    binlog_bytes: int
    health: HealthFacts

    @property
    def stored_bytes(self) -> int:
        return self.backup_bytes + self.binlog_bytes


@dataclass(frozen=True)
class FleetReason:
    """A problem of an instance: its reason, advice for the user, and the time when it began (UTC), if known.

    The field `what` contains the objective that is not met, or HEARD.
    """

    what: str
    verdict: Verdict
    text: str
    hint: str
    since: datetime | None


@dataclass(frozen=True)
class FleetRow:
    """An instance in a repository, with its health at a given time.

    If the instance could not be read now, `problem` contains the reason, and the facts, if any, come from an earlier
    reading. The facts were read at the time `read`. The field `reasons` contains the unmet objectives, ordered by
    verdict (worst first) and then by age (oldest first).
    """

    instance: str
    repository: str
    facts: InstanceFacts | None
    read: datetime | None
    health: Health | None
    reasons: tuple[FleetReason, ...]
    problem: str = ""
    problem_code: int = 0

    @property
    def host(self) -> str:
        return self.facts.host if self.facts is not None else ""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the instance's objectives. If the instance is unreadable, the verdict is broken."""
        if self.problem or self.facts is None:
            return Verdict.BROKEN
        return worst(reason.verdict for reason in self.reasons)

    @property
    def is_drill_due(self) -> bool:
        """Whether the drill objective is broken or has a warning."""
        judged = self.health.judgements if self.health is not None else ()
        return any(one.objective is Objective.DRILL and one.verdict is not Verdict.MET for one in judged)

    @property
    def exit_code(self) -> int:
        """The exit code of the reading error, if there is one; otherwise the exit code of `zsnapdb status`.

        `zsnapdb status` exits with 7 for damage, with 6 if nothing is restorable, and otherwise with the rank of the
        verdict.
        """
        if self.problem or self.facts is None:
            return self.problem_code or Verdict.BROKEN.rank
        if self.facts.health.damage:
            return 7
        return 6 if self.facts.health.newest_point is None else self.verdict.rank

    @property
    def since(self) -> datetime | None:
        """The earliest known start of the worst verdict."""
        known = [one.since for one in self.reasons if one.verdict is self.verdict and one.since is not None]
        return min(known, default=None)


@dataclass(frozen=True)
class HostState:
    """A host: its last sign of life (UTC), its number of instances, and whether it is silent."""

    host: str
    heard: datetime | None
    instances: int
    is_silent: bool


@dataclass(frozen=True)
class FleetCounts:
    """The number of all instances, and how many of them are broken, have a warning, or have a due drill.

    An unreadable instance counts as broken. The field `stored_bytes` is the total size in the store.
    """

    instances: int
    broken: int
    warnings: int
    drills_due: int
    stored_bytes: int


def counts(rows: Iterable[FleetRow]) -> FleetCounts:
    """Return the counts of the given rows."""
    known = list(rows)
    return FleetCounts(
        len(known),
        sum(one.verdict is Verdict.BROKEN for one in known),
        sum(one.verdict is Verdict.WARNING for one in known),
        sum(one.is_drill_due for one in known),
        sum(one.facts.stored_bytes for one in known if one.facts is not None),
    )


def newest_sign(times: Iterable[datetime | None], at: datetime) -> datetime | None:
    """Return the time of the newest sign of life; None if there is none. Times in the future are ignored."""
    latest = at + timedelta(seconds=_CLOCKS)
    return max((time for time in times if time is not None and time <= latest), default=None)


def hosts(
    known: Iterable[InstanceFacts], at: datetime, within: float, expected: Iterable[str] = ()
) -> tuple[HostState, ...]:
    """Return every host that a backup mentions, and every `expected` host.

    Hosts without a sign of life in the last `within` seconds are silent and come first. Hosts are then ordered by name.
    """
    heard: dict[str, list[datetime | None]] = {host: [] for host in expected}
    for facts in known:
        if facts.host:
            heard.setdefault(facts.host, []).append(facts.heard)
    states = []
    for host, times in heard.items():
        newest = max((time for time in times if time is not None), default=None)
        is_silent = newest is None or (at - newest).total_seconds() > within
        states.append(HostState(host, newest, len(times), is_silent))
    return tuple(sorted(states, key=lambda state: (not state.is_silent, state.host)))


def row(
    facts: InstanceFacts, read: datetime, at: datetime, expected: ObjectiveSettings, silent: Mapping[str, HostState]
) -> FleetRow:
    """Return the instance's row in the fleet view.

    The instance is judged by the objectives in its backups. If the backups contain no objectives, it is judged by
    `expected`.

    The argument `silent` contains the silent hosts, by name.
    """
    health = judge(replace(facts.health, at=at), judged_by(facts.objectives or expected))
    reasons = [_reason(one, facts.health) for one in health.judgements if one.verdict is not Verdict.MET]
    if facts.host in silent:
        reasons.append(_silence(silent[facts.host], at))
    return FleetRow(facts.instance, facts.repository, facts, read, health, tuple(sorted(reasons, key=_urgency)))


def judged_by(objectives: ObjectiveSettings) -> ObjectiveSettings:
    """Return only those objectives that the fleet view judges."""
    return ObjectiveSettings.model_validate(objectives.model_dump(exclude=set(NOT_JUDGED)))


def _reason(judged: Judgement, facts: HealthFacts) -> FleetReason:
    since = judged.deadline if judged.verdict is Verdict.BROKEN else None
    newest = facts.newest_drill
    if judged.objective is Objective.DRILL and newest is not None and not newest.passed:
        since = newest.finished if since is None else min(since, newest.finished)
    return FleetReason(judged.name, judged.verdict, judged.reason, judged.hint, since)


def _silence(host: HostState, at: datetime) -> FleetReason:
    when = "was never heard of"
    if host.heard is not None:
        when = f"was not heard of for {format_duration(round((at - host.heard).total_seconds()))}"
    hint = f"see that {host.host} is up, and that its agent or timers run"
    return FleetReason(HEARD, Verdict.BROKEN, f"host {host.host} {when}", hint, host.heard)


def _urgency(reason: FleetReason) -> tuple[int, float]:
    return -reason.verdict.rank, reason.since.timestamp() if reason.since is not None else float("inf")


class SortKey(StrEnum):
    """A key by which the rows of the fleet view are ordered.

    With RED, the rows with the worst verdict come first. Among rows with the same verdict, the one whose verdict has
    lasted longest comes first.
    """

    RED = "red"
    INSTANCE = "instance"
    HOST = "host"
    AGE = "age"
    STORED = "stored"


def _time(moment: datetime | None, unknown: float) -> float:
    return moment.timestamp() if moment is not None else unknown


_ORDERS: Mapping[SortKey, Callable[[FleetRow], tuple[float | str, ...]]] = {
    SortKey.RED: lambda one: (-one.verdict.rank, -one.exit_code, _time(one.since, float("inf"))),
    SortKey.INSTANCE: lambda one: (one.instance,),
    SortKey.HOST: lambda one: (one.host,),
    SortKey.AGE: lambda one: (_time(one.facts.health.newest_backup if one.facts is not None else None, 0.0),),
    SortKey.STORED: lambda one: (-float(one.facts.stored_bytes if one.facts is not None else 0),),
}


def ordered(rows: Iterable[FleetRow], key: SortKey) -> tuple[FleetRow, ...]:
    """Return the rows in the order of the sort key. Equal rows are ordered by instance, repository and host."""
    return tuple(sorted(rows, key=lambda one: (*_ORDERS[key](one), one.instance, one.repository, one.host)))


@dataclass(frozen=True)
class Filter:
    """A condition for showing a row: the row is red (broken), or a name matches a pattern."""

    field: str
    pattern: str = ""

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Return the filter. Raises UsageError if the text is invalid."""
        field, separator, pattern = text.partition("=")
        if field == "red" and not separator:
            return cls(field)
        if field in _NAMES and pattern:
            return cls(field, pattern)
        raise UsageError(
            f"--where {text!r} is not a filter",
            hint="write red, host=PATTERN, instance=PATTERN or repository=PATTERN, such as host=db-*",
        )

    def passes(self, one: FleetRow) -> bool:
        if self.field == "red":
            return one.verdict is Verdict.BROKEN
        return fnmatch.fnmatchcase(_NAMES[self.field](one), self.pattern)


_NAMES: Mapping[str, Callable[[FleetRow], str]] = {
    "host": lambda one: one.host,
    "instance": lambda one: one.instance,
    "repository": lambda one: one.repository,
}


def filter_rows(rows: Iterable[FleetRow], filters: Sequence[Filter]) -> tuple[FleetRow, ...]:
    """Return the rows that pass every filter."""
    return tuple(one for one in rows if all(condition.passes(one) for condition in filters))


def is_known(
    filters: Sequence[Filter], rows: Iterable[FleetRow], hosts: Iterable[str], repositories: Iterable[str]
) -> bool:
    """Return whether the names in the filters match an instance, or else a host or repository without instances."""
    named = [one for one in filters if one.field in _NAMES]
    others = [*(("host", name) for name in hosts), *(("repository", name) for name in repositories)]
    return (
        not named
        or bool(filter_rows(rows, named))
        or any(
            all(one.field == field and fnmatch.fnmatchcase(name, one.pattern) for one in named)
            for field, name in others
        )
    )


def no_match() -> UsageError:
    """Return the error for filters that match nothing in the fleet."""
    return UsageError("no instance of the fleet matches", hint="check --where; `*` matches anything")
