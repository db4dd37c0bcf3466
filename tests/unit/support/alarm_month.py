"""Health verdicts and notifications in a simulated month of the agent, with facts from the finished runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.unit.support.agent_month import AgentMonth, FakeRun
from zsnapdb.config.notifications import NotificationEvent, NotificationTarget
from zsnapdb.planning.health.facts import DrillFact, HealthFacts
from zsnapdb.planning.health.notification_events import (
    READABLE,
    JudgedInstance,
    TargetMemory,
    concerns,
    is_news,
    judgement_occasions,
    overall,
)
from zsnapdb.planning.health.objectives import judge

ARCHIVE, STATUS = ("binlog", "archive", "main"), "status"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Span:
    """A period of a condition."""

    begin: datetime
    end: datetime

    def has(self, moment: datetime) -> bool:
        return self.begin <= moment < self.end

    def widened(self, before: timedelta, after: timedelta) -> Span:
        return Span(self.begin - before, self.end + after)


@dataclass(frozen=True)
class Heard:
    """A notification of a target: its time and subject."""

    at: datetime
    subject: str
    is_broken: bool


@dataclass
class AlarmMonth:
    """The facts, the verdicts and the alarms of a month. All times are those of the host."""

    month: AgentMonth
    no_store: list[Span] = field(default_factory=list)
    """Periods in which the repository is unreachable."""
    no_archive: list[Span] = field(default_factory=list)
    """Periods in which the archiver archives nothing, running or not."""

    def ended_well(self, *words: str) -> list[FakeRun]:
        """Return the runs of a command that exited with 0."""
        runs = (run for run in self.month.runs if run.words[: len(words)] == words)
        return [run for run in runs if run.ended is not None and not run.is_stopped and run.code == 0]

    def archived(self) -> list[Span]:
        """Return the periods in which the archive was complete up to the moment."""
        spans: list[Span] = []
        for run in self.month.runs:
            if run.words == ARCHIVE and (run.code == 0 or run.seconds > 60):
                spans += _without(Span(run.began, run.ended or self.month.time), [*self.no_store, *self.no_archive])
        return spans

    def facts(self, moments: Sequence[datetime]) -> Iterator[HealthFacts]:
        """Yield the facts at these moments, which are in order."""
        backups = self.ended_well("backup", "main")
        drills = [run for run in self.month.runs if run.words == ("drill", "main") and run.code in (0, 11)]
        drills = [run for run in drills if run.ended is not None and not run.is_stopped]
        archived = self.archived()
        for at in moments:
            backup = max((run.began for run in backups if run.ended and run.ended <= at), default=None)
            until = max((min(span.end, at) for span in archived if span.begin <= at), default=None)
            tried = [_drill(run) for run in drills if run.ended and run.ended <= at]
            passed = [drill for drill in tried if drill.passed]
            yield HealthFacts(
                instance="main",
                repository="here",
                at=at,
                newest_point=max((time for time in (backup, until) if time is not None), default=None),
                window_start=None,
                newest_backup=backup,
                archived_until=until,
                newest_drill=tried[-1] if tried else None,
                newest_passed_drill=passed[-1] if passed else None,
            )

    def heard(self, target: NotificationTarget) -> list[Heard]:
        """Return the target's notifications, check by check."""
        judged_at = [run.ended for run in self.month.runs if run.words[0] == STATUS and not run.is_stopped]
        moments = [moment for moment in judged_at if moment is not None]
        objectives = self.month.settings.instance["main"].objectives
        memory, result = TargetMemory(), []
        for at, facts in zip(moments, self.facts(moments), strict=True):
            readable = not any(span.has(at) for span in self.no_store)
            health = judge(facts, objectives) if readable else None
            judged = [JudgedInstance("main", "here", health)]
            whole = overall(target, judged, ["main"], at)
            occasions = [whole] if whole is not None else list(judgement_occasions(judged, at))
            for occasion in occasions:
                if concerns(target, occasion) and is_news(target, memory, occasion):
                    memory = memory.arrived(occasion)
                    result.append(Heard(at, occasion.subject, occasion.event is NotificationEvent.BROKEN))
        return result

    def truth(self, begin: datetime, end: datetime) -> dict[str, list[Span]]:
        """Return the periods in which each objective is broken, minute by minute, from ages and limits alone."""
        minutes = int((end - begin).total_seconds()) // 60
        moments = [begin + timedelta(minutes=number) for number in range(minutes)]
        limits = self.month.settings.instance["main"].objectives
        broken: dict[str, list[datetime]] = {READABLE: [], "rpo": [], "backup-age": [], "archive-lag": [], "drill": []}
        for facts in self.facts(moments):
            if any(span.has(facts.at) for span in self.no_store):
                broken[READABLE].append(facts.at)
            for name, fact, limit in (
                ("rpo", facts.newest_point, limits.rpo),
                ("backup-age", facts.newest_backup, limits.backup_age),
                ("archive-lag", facts.archived_until, limits.archive_lag),
                ("drill", facts.newest_passed_drill and facts.newest_passed_drill.finished, limits.drill_age),
            ):
                is_old = limit is not None and (facts.at - (fact or LONG_AGO)).total_seconds() > limit
                failed = name == "drill" and facts.newest_drill is not None and not facts.newest_drill.passed
                if is_old or failed:
                    broken[name].append(facts.at)
        return {name: _spans(times) for name, times in broken.items()}


def switch(heard: Sequence[Heard], begin: datetime, end: datetime, grace: timedelta) -> list[Span]:
    """Return the periods in which a dead man's switch with these pings is red. It expects a ping within `grace`."""
    red: list[Span] = []
    for one, following in zip(heard, [*heard[1:], None], strict=True):
        until = following.at if following is not None else end
        if one.is_broken:
            red.append(Span(one.at, until))
        elif until - one.at > grace:
            red.append(Span(one.at + grace, until))
    return _joined(red)


def _drill(run: FakeRun) -> DrillFact:
    assert run.ended is not None
    return DrillFact("drill", "backup", run.ended, run.code == 0)


def _without(span: Span, others: Sequence[Span]) -> list[Span]:
    rest = [span]
    for other in others:
        cut = [(Span(one.begin, min(one.end, other.begin)), Span(max(one.begin, other.end), one.end)) for one in rest]
        rest = [one for pair in cut for one in pair if one.begin < one.end]
    return rest


def _spans(minutes: Sequence[datetime]) -> list[Span]:
    return _joined([Span(minute, minute + timedelta(minutes=1)) for minute in minutes])


def _joined(spans: Sequence[Span]) -> list[Span]:
    result: list[Span] = []
    for span in spans:
        if result and span.begin <= result[-1].end:
            result[-1] = Span(result[-1].begin, max(span.end, result[-1].end))
        else:
            result.append(span)
    return result
