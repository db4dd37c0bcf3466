"""Evaluates an instance's objectives for one repository, for everything that displays or reports health. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from zsnapdb.base.quantities import format_duration
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.binlog.archive_times import least_limit
from zsnapdb.planning.binlog.recoverable_ranges import Window
from zsnapdb.planning.binlog.route import EndKind
from zsnapdb.planning.health.facts import CheckFact, CopyFact, ExchangedServer, HealthFacts, LockFact
from zsnapdb.planning.trial.drill import Timing, expected_seconds

_CLOCKS = 300.0
"""An age is considered wrong if its fact is more than this many seconds in the future."""
_FAR = 86_400.0
"""An objective breaks if its fact is further in the future than both this number of seconds and its limit.

Otherwise, a backup made while the clock was a year ahead could prevent an alarm for a year.
"""


class Objective(StrEnum):
    """The kind of an objective.

    RESTORABLE and INTACT are judged for each instance. SERVER is judged while the server is down, its volumes are full,
    or a zsnapdb command replaces it. AGENT is judged while the agent that should run the jobs does not run. All other
    objectives are judged if they are configured. If no limit is configured for RPO, RPO causes a warning if no binlog
    is archived.
    """

    RESTORABLE = "restorable"
    INTACT = "intact"
    SERVER = "server"
    AGENT = "agent"
    RPO = "rpo"
    BACKUP_AGE = "backup-age"
    ARCHIVE_LAG = "archive-lag"
    DRILL = "drill"
    VERIFY_AGE = "verify-age"
    DEEP_VERIFY_AGE = "deep-verify-age"
    WINDOW = "window"
    COPY = "copy"
    IMMUTABLE = "immutable"
    RESTORE_TIME = "restore-time"


class Verdict(StrEnum):
    """The state of an objective. If a fact is unknown, the objective that depends on it is broken."""

    MET = "met"
    WARNING = "warning"
    BROKEN = "broken"

    @property
    def rank(self) -> int:
        """The rank is 0 for met, 1 for a warning and 2 for broken. It is also the exit code of `zsnapdb status`."""
        return (Verdict.MET, Verdict.WARNING, Verdict.BROKEN).index(self)


@dataclass(frozen=True)
class Judgement:
    """The state of one objective, with its reason.

    - `fact`: the time (UTC) on which the verdict depends, from which a reader can compute the current age
    - `seconds`, `limit`: the measured and the configured value, if any
    - `subject`: the repository that contains the copy, for the objective `copy`
    - `deadline`: the time at which an age objective becomes broken unless its fact changes
    """

    objective: Objective
    verdict: Verdict
    reason: str
    hint: str = ""
    fact: datetime | None = None
    seconds: float | None = None
    limit: float | None = None
    subject: str = ""
    deadline: datetime | None = None

    @property
    def name(self) -> str:
        return f"{self.objective.value} {self.subject}".rstrip()


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of the verdicts; MET if there is none."""
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.MET)


@dataclass(frozen=True)
class Health:
    """The facts about an instance in one repository, and the judgements about them."""

    facts: HealthFacts
    judgements: tuple[Judgement, ...]

    @property
    def verdict(self) -> Verdict:
        return worst(judgement.verdict for judgement in self.judgements)


_STAND_STILL = (Objective.RPO, Objective.BACKUP_AGE, Objective.ARCHIVE_LAG)
"""Objectives whose ages grow while the server is down, although no data is at risk during that time."""


def judge(facts: HealthFacts, objectives: ObjectiveSettings) -> Health:
    """Return the judgements of all configured objectives and of the objectives that apply to every instance.

    While a zsnapdb command replaces the server and the server is down, it writes nothing, and none of its jobs can run.
    So the objectives in `_STAND_STILL` cause at most warnings during this time. The objective `server` reports the
    state.
    """
    configured = tuple(_configured(facts, objectives))
    if any(exchange.server is not ExchangedServer.RUNS for exchange in facts.exchanges):
        configured = tuple(_without_alarm(judgement) for judgement in configured)
    return Health(facts, (_restorable(facts), _intact(facts), *_server(facts), *_agent(facts), *configured))


def _without_alarm(judgement: Judgement) -> Judgement:
    if judgement.objective not in _STAND_STILL:
        return judgement
    if judgement.verdict is not Verdict.BROKEN:
        return replace(judgement, deadline=None)
    reason = f"{judgement.reason}; the server is being replaced and is down"
    return replace(judgement, verdict=Verdict.WARNING, reason=reason, hint="", deadline=None)


def _restorable(facts: HealthFacts) -> Judgement:
    kind, run = Objective.RESTORABLE, f"run `zsnapdb backup {facts.instance}`"
    if facts.no_copy:
        reason = f"this host cannot restore the newest backup: {facts.no_copy}"
        return Judgement(
            kind, Verdict.BROKEN, reason, f"run `zsnapdb backup {facts.instance} --plan`", facts.newest_point
        )
    if facts.newest_backup is None:
        return Judgement(kind, Verdict.BROKEN, "no backup can be restored", run)
    if facts.unprotected:
        reason = f"nothing newer can be restored before the next backup: {facts.unprotected}"
        return Judgement(kind, Verdict.WARNING, reason, run, facts.newest_point)
    return Judgement(kind, Verdict.MET, "there is a backup that can be restored", fact=facts.newest_point)


def _intact(facts: HealthFacts) -> Judgement:
    verify = f"run `zsnapdb verify {facts.instance}`, which says what can still be restored"
    found = (
        (Verdict.BROKEN, facts.damage, verify),
        (Verdict.BROKEN, facts.room, "`df` shows the file system; free room there, or mount it writable"),
        (Verdict.WARNING, facts.doubts, verify),
    )
    for verdict, reasons, hint in found:
        if reasons:
            more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            return Judgement(Objective.INTACT, verdict, reasons[0] + more, hint)
    return Judgement(Objective.INTACT, Verdict.MET, "nothing is known to be damaged or missing")


def _server(facts: HealthFacts) -> Iterator[Judgement]:
    stopped = None if facts.exchanges else facts.stopped
    if facts.full is not None:
        reason = facts.full.describe() + (f"; {stopped.describe(facts.instance)}" if stopped is not None else "")
        hint = facts.full.hint(stopped.unit if stopped is not None else None)
        yield Judgement(Objective.SERVER, Verdict.BROKEN, reason, hint)
    elif stopped is not None:
        yield Judgement(
            Objective.SERVER,
            Verdict.BROKEN if stopped.has_failed or stopped.missing is not None else Verdict.WARNING,
            stopped.describe(facts.instance),
            stopped.hint(facts.instance),
        )
    for exchange in facts.exchanges:
        hint = exchange.hint()
        since = exchange.stopped or exchange.started
        age = format_duration(max(0, round((facts.at - since).total_seconds())))
        what = (
            f"stopped the server of {facts.instance} {age} ago"
            if exchange.stopped is not None
            else f"of {facts.instance} was started {age} ago, and its server is down"
        )
        if exchange.server is ExchangedServer.AWAY:
            reason = f"a rewind {what}, and is running"
            yield Judgement(Objective.SERVER, Verdict.WARNING, reason, "wait until it ends", since)
            continue
        if exchange.server is ExchangedServer.LEFT:
            reason = f"a rewind that did not end {what}"
            yield Judgement(Objective.SERVER, Verdict.BROKEN, reason, hint, since)
            continue
        started = format_duration(max(0, round((facts.at - exchange.started).total_seconds())))
        reason = f"a restore that replaces the server of {facts.instance} was started {started} ago and did not end"
        yield Judgement(Objective.SERVER, Verdict.WARNING, reason, hint, exchange.started)


LACKING_AGENT = "the jobs of {} are scheduled for the agent, and no agent runs on this host"
LACKING_AGENT_HINT = (
    "run `systemctl start zsnapdb-agent`, or `zsnapdb agent` on a host without systemd; if it ends again, see"
    " `journalctl -u zsnapdb-agent`"
)


def _agent(facts: HealthFacts) -> Iterator[Judgement]:
    if facts.lacks_agent:
        reason = LACKING_AGENT.format(facts.instance)
        yield Judgement(Objective.AGENT, Verdict.WARNING, reason, LACKING_AGENT_HINT)


def _configured(facts: HealthFacts, objectives: ObjectiveSettings) -> Iterator[Judgement]:
    name = facts.instance
    backup, archive = f"run `zsnapdb backup {name}`", f"run `zsnapdb binlog archive {name} --once`"
    if facts.lacks_agent:
        archive = LACKING_AGENT_HINT
    age = _Ages(facts.at, objectives.warn_at).judge
    if objectives.rpo is not None:
        what = "the newest restorable point"
        yield age(Objective.RPO, what, facts.newest_point, objectives.rpo, f"{backup}, and {archive}")
    elif facts.newest_backup is not None and facts.archived_until is None and not facts.is_machine:
        reason = "changes since the newest backup cannot be restored: no binlog is archived"
        hint = (
            f"{archive}; `zsnapdb doctor {name}` says whether the server writes binlogs. If backups are enough, set rpo"
            f' in [instance.{name}.objectives], such as rpo = "31h"'
        )
        yield Judgement(Objective.RPO, Verdict.WARNING, reason, hint, facts.newest_point)
    if objectives.backup_age is not None:
        what = "the newest restorable backup"
        yield age(Objective.BACKUP_AGE, what, facts.newest_backup, objectives.backup_age, backup)
    if objectives.archive_lag is not None:
        what = "the end of the binlog archive"
        yield age(Objective.ARCHIVE_LAG, what, facts.archived_until, objectives.archive_lag, archive)
    if objectives.drill_age is not None:
        yield _drill(facts, objectives.drill_age, age)
    checks = (
        (Objective.VERIFY_AGE, facts.listed, objectives.verify_age, "verify"),
        (Objective.DEEP_VERIFY_AGE, facts.read, objectives.deep_verify_age, "verify --deep"),
    )
    for kind, check, limit, command in checks:
        if limit is not None:
            yield _check(kind, check, limit, f"run `zsnapdb {command} {name}`", age)
    if objectives.window is not None:
        yield _window(facts, objectives.window)
    for repository, limit in sorted(objectives.copies.items()):
        yield _copy(repository, facts, limit, age)
    if objectives.immutable_for is not None:
        yield _immutable(facts.lock, objectives.immutable_for)
    if objectives.restore_time is not None:
        yield _restore_time(facts, objectives.restore_time, objectives.warn_at)


_Judge = Callable[[Objective, str, "datetime | None", float, str], Judgement]


@dataclass(frozen=True)
class _Ages:
    """Judges ages at a given time. If an age exceeds the fraction `warn_at` of its limit, the verdict is a warning."""

    at: datetime
    warn_at: float

    def judge(self, kind: Objective, what: str, fact: datetime | None, limit: float, hint: str) -> Judgement:
        """Return the judgement about the age of a fact.

        If the time of the fact is in the future, its age is unknown.
        """
        if fact is None:
            return Judgement(kind, Verdict.BROKEN, f"{what}: there is none", hint, limit=limit)
        age = (self.at - fact).total_seconds()
        deadline = _after(fact, limit)
        if age < -_CLOCKS:
            reason = f"{what} is {format_duration(-age)} in the future: a clock is wrong, so its age is not known"
            check = "check `date -u` here and on the host that writes"
            if age < -max(limit, _FAR):
                return Judgement(kind, Verdict.BROKEN, reason, f"{check}; {hint}", fact, age, limit)
            return Judgement(kind, Verdict.WARNING, reason, check, fact, age, limit, deadline=deadline)
        verdict = Verdict.BROKEN if age > limit else Verdict.WARNING if age > limit * self.warn_at else Verdict.MET
        reason = f"{what} is {format_duration(max(0, round(age)))} old, of at most {format_duration(limit)}"
        advice = hint if verdict is not Verdict.MET else ""
        return Judgement(kind, verdict, reason, advice, fact, age, limit, deadline=deadline)


def _after(fact: datetime, seconds: float) -> datetime | None:
    """Return the time `seconds` after the fact; None if it is after the year 9999. A forged fact can cause this."""
    try:
        return fact + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _drill(facts: HealthFacts, limit: float, age: _Judge) -> Judgement:
    newest, passed = facts.newest_drill, facts.newest_passed_drill
    hint = f"run `zsnapdb drill {facts.instance}`"
    judged = age(Objective.DRILL, "the newest drill that passed", passed.finished if passed else None, limit, hint)
    if newest is None or newest.passed:
        return judged
    reason = f"the newest drill, {newest.drill_id} of backup {newest.backup_id}, did not pass; {judged.reason}"
    see = f"see `zsnapdb drills {facts.instance}`, mend what it found, and {hint}"
    return replace(judged, verdict=Verdict.BROKEN, reason=reason, hint=see)


def _check(kind: Objective, check: CheckFact | None, limit: float, hint: str, age: _Judge) -> Judgement:
    if check is None:
        return Judgement(kind, Verdict.BROKEN, "there is no backup that can be restored and checked", hint, limit=limit)
    backup = f"backup {check.backup_id}"
    what = f"the last check of {backup}" if check.was_checked else f"{backup}, which was never checked,"
    return age(kind, what, check.since, limit, hint)


def _window(facts: HealthFacts, limit: float) -> Judgement:
    kind = Objective.WINDOW
    if facts.window_start is None:
        return Judgement(kind, Verdict.BROKEN, "nothing can be restored", limit=limit)
    length = (facts.at - facts.window_start).total_seconds()
    reason = (
        f"what can be restored without a gap begins {format_duration(max(0, round(length)))} ago, of at least"
        f" {format_duration(limit)}"
    )
    verdict = Verdict.MET if length >= limit else Verdict.BROKEN
    hint = "" if verdict is Verdict.MET else "check the retention policy, and gaps in `zsnapdb status`"
    return Judgement(kind, verdict, reason, hint, facts.window_start, length, limit)


def _copy(repository: str, facts: HealthFacts, limit: float, age: _Judge) -> Judgement:
    fact = next((fact for fact in facts.copies if fact.repository == repository), CopyFact(repository, None))
    hint = f"run `zsnapdb copy {facts.instance} --to {repository}`"
    if fact.problem:
        reason = f"repository {repository} cannot be read: {fact.problem}"
        judged = Judgement(Objective.COPY, Verdict.BROKEN, reason, "check that repository", limit=limit)
    else:
        judged = age(Objective.COPY, f"the newest restorable point in {repository}", fact.newest, limit, hint)
    return replace(judged, subject=repository)


def _immutable(lock: LockFact | None, limit: float) -> Judgement:
    kind, hint = Objective.IMMUTABLE, "set a default retention of the bucket's object lock"
    if lock is None:
        return Judgement(kind, Verdict.BROKEN, "there is no backup that could be protected", limit=limit)
    if lock.unprotected:
        reason = f"the store does not keep {lock.unprotected} of backup {lock.backup_id} from removal"
        return Judgement(kind, Verdict.BROKEN, reason, hint, limit=limit)
    if lock.until is None:
        return Judgement(kind, Verdict.MET, f"backup {lock.backup_id} has a legal hold", limit=limit)
    length = (lock.until - lock.made).total_seconds()
    verdict = Verdict.MET if length >= limit else Verdict.BROKEN
    kept = format_duration(max(0, round(length)))
    reason = (
        f"the store keeps backup {lock.backup_id} and its chain from removal for {kept}"
        f" after it was made, of at least {format_duration(limit)}"
    )
    return Judgement(kind, verdict, reason, hint if verdict is Verdict.BROKEN else "", lock.until, length, limit)


def _restore_time(facts: HealthFacts, limit: float, warn_at: float) -> Judgement:
    kind, seconds = Objective.RESTORE_TIME, facts.restore_seconds
    if seconds is None:
        reason = "how long a restore takes is not known: no past drill that passed did all its steps"
        return Judgement(kind, Verdict.BROKEN, reason, f"run `zsnapdb drill {facts.instance}`", limit=limit)
    verdict = Verdict.BROKEN if seconds > limit else Verdict.WARNING if seconds > limit * warn_at else Verdict.MET
    reason = (
        f"by past drills a restore takes about {format_duration(round(seconds))}, of at most {format_duration(limit)}"
    )
    hint = "" if verdict is Verdict.MET else "take full backups more often, or restore on a faster host"
    return Judgement(kind, verdict, reason, hint, seconds=seconds, limit=limit)


@dataclass(frozen=True)
class ShortLimit:
    """A limit that is too short, its key in the objectives, the smallest possible limit in seconds, and the reason."""

    key: str
    limit: float
    least: int
    why: str

    def __str__(self) -> str:
        return f"{self.key} = {format_duration(self.limit)} cannot be kept: {self.why}; {self.least} s is the least"


def archive_short_limits(objectives: ObjectiveSettings, interval: float) -> Iterator[ShortLimit]:
    """Yield the limits that even an idle server would exceed. The interval is `binlog.interval` in seconds."""
    least = math.ceil(least_limit(objectives, interval))
    pause = format_duration(interval)
    why = f"the binlogs are looked at every {pause} (binlog.interval), and a warning comes earlier (warn_at)"
    for key, limit in (("archive_lag", objectives.archive_lag), ("rpo", objectives.rpo)):
        if limit is not None and limit < least:
            yield ShortLimit(key, limit, least, why)


def schedule_short_limits(key: str, limit: float | None, job: str, pause: float) -> Iterator[ShortLimit]:
    """Yield the age limit if it is no longer than `pause`, the longest time in seconds between two runs of the job."""
    if limit is not None and limit <= pause:
        yield ShortLimit(key, limit, math.ceil(pause) + 1, f"{job} runs up to {format_duration(pause)} apart")


_OF_BYTES = ("receive", "replay")
"""The kinds of steps whose duration depends on the number of transferred bytes."""
_OF_CHECKS = ("pages", "tables", "probes", "boot", "ask")
"""The kinds of steps that a drill has, but a restore does not."""


def restore_seconds(history: Sequence[Timing], sizes: Mapping[str, int]) -> float | None:
    """Return the expected duration of a restore in seconds; None if past drills lack a required kind of step.

    The argument `sizes` contains the bytes that the restore transfers in total, by kind of step. Steps that transfer no
    bytes are expected to take the median of their past durations.
    """
    moving = [expected_seconds(kind, sizes[kind], history) for kind in _OF_BYTES if sizes.get(kind)]
    if not moving or None in moving:
        return None
    others = dict.fromkeys(timing.kind for timing in history if timing.kind not in (*_OF_BYTES, *_OF_CHECKS))
    fixed = [expected_seconds(kind, 0, history) for kind in others]
    return sum(seconds for seconds in (*moving, *fixed) if seconds is not None)


def start_without_gap(window: Window) -> int | None:
    """Return the start of the gapless range up to the newest restorable point (microseconds UTC).

    Return None if nothing can be restored. Without archived binlogs, the time between two backups is not a gap.
    """
    start = None
    gaps = {gap.end: gap for gap in window.gaps}
    for part in reversed(window.ranges):
        start = part.start
        gap = gaps.get(start)
        if gap is not None and gap.reason.kind is not EndKind.NO_ARCHIVE:
            break
    return start
