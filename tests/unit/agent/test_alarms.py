"""In a month of faults every alarm comes within its limit, ends with its reason, and none is false."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tests.unit.support.agent_month import AgentMonth, MemoryRecords
from tests.unit.support.alarm_month import ARCHIVE, AlarmMonth, Heard, Span, switch
from zsnapdb.agent import supervisor
from zsnapdb.config.notifications import NotificationTarget, NotifiedJob
from zsnapdb.config.settings import parse
from zsnapdb.planning.health.notification_events import READABLE

SETTINGS = """
[agent]
timezone = "Europe/Berlin"
status = { every = "5m" }
[instance.main]
socket = "/x"
repository = "here"
[instance.main.agent]
archive = true
backup = { cron = "17 * * * *", jitter = "5m" }
full = { cron = "30 2 * * 0" }
drill = { cron = "30 4 * * *" }
[instance.main.objectives]
rpo = "2h"
backup_age = "3h"
archive_lag = "30m"
drill_age = "36h"
[repository.here]
url = "file:///nowhere"
"""
LOOK = timedelta(minutes=2)
"""How often the agent of this month looks: it makes a month shorter."""
LIMIT = timedelta(minutes=5) + 2 * LOOK
"""One interval of the status job, with its own duration."""
GRACE = timedelta(minutes=15)
HOOK = NotificationTarget(webhook="https://example.net/hook", repeat="6h")
BOARD = NotificationTarget(ping="https://example.net/o", of=NotifiedJob.OBJECTIVES)


@dataclass
class Faults:
    """The answers of jobs while something is wrong."""

    server: bool = True
    store: bool = True
    drill: bool = True

    def answer(self, words: tuple[str, ...]) -> tuple[float, int]:
        if words[0] == "status":
            return 20.0, 0
        code = 5 if not self.server else 6 if not self.store else 0
        if words == ARCHIVE:
            return (1.0, code) if code else (1e9, 0)
        if words[0] == "drill":
            return 1800.0, 11 if not self.drill else 6 if not self.store else 0
        return (30.0, code) if code else (600.0, 0)


@dataclass(frozen=True)
class Lived:
    """A month that was lived: what was true, and what two targets heard."""

    alarms: AlarmMonth
    begin: datetime
    truth: dict[str, list[Span]]
    hook: list[Heard]
    board: list[Heard]

    @property
    def judged(self) -> list[datetime]:
        """When the objectives were judged."""
        runs = self.alarms.month.runs
        return [run.ended for run in runs if run.words[0] == "status" and run.ended and not run.is_stopped]

    @property
    def dark(self) -> list[Span]:
        """When the switch is red."""
        heard = [one for one in self.board if one.at >= self.begin]
        return switch(heard, self.begin, self.alarms.month.time, GRACE)


def started(month: AgentMonth) -> datetime:
    """Live until the first backup and the first drill are done, so that the month begins green."""
    month.boot()
    month.live(days=2)
    return month.time


def lived(alarms: AlarmMonth, faults: Faults) -> datetime:
    """Live a month with a dead server, a dead repository, failing drills, a dead agent, a pause and a hanging archive.

    Return the time of the end of the beginning, from which on everything is judged.
    """
    month = alarms.month
    begin = started(month)
    faults.server, server = False, month.time
    end_archive(month)
    month.live(hours=10)
    faults.server = True
    alarms.no_archive.append(Span(server, month.time))
    month.live(days=2)
    faults.store, store = False, month.time
    end_archive(month)
    month.live(hours=8)
    faults.store = True
    alarms.no_store.append(Span(store, month.time))
    month.live(days=2)
    month.crash()
    month.live(hours=12)
    month.boot()
    month.live(days=2)
    faults.drill = False
    month.live(days=3)
    faults.drill = True
    month.live(days=3)
    hangs = month.time
    month.live(hours=6)
    alarms.no_archive.append(Span(hangs, month.time))
    month.live(days=2)
    assert month.agent is not None
    month.agent.use(parse(SETTINGS.replace("17 * * * *", "27 * * * *"), "test"))
    month.live(days=2)
    month.crash()
    month.live(days=4)
    month.boot()
    month.live(days=5)
    return begin


def end_archive(month: AgentMonth) -> None:
    """End the archive by the code of its fault, at the next look."""
    for run in month.runs:
        if run.words == ARCHIVE and run.ended is None:
            run.seconds, run.code = (month.time - run.began).total_seconds(), 5


@pytest.fixture(scope="module")
def alarms(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    patch = pytest.MonkeyPatch()
    patch.setattr(supervisor, "LONGEST_WAIT", LOOK.total_seconds())
    faults = Faults()
    folder = tmp_path_factory.mktemp("alarms")
    month = AgentMonth(
        parse(SETTINGS, "test"), MemoryRecords(folder), datetime(2026, 10, 10, 20, 1, tzinfo=UTC), faults.answer
    )
    known = AlarmMonth(month)
    begin = lived(known, faults)
    patch.undo()
    return Lived(known, begin, known.truth(begin, month.time), known.heard(HOOK), known.heard(BOARD))


def problems(heard: list[Heard], subject: str) -> list[Span]:
    """Return when a target takes the subject for broken."""
    spans, since = [], None
    for one in (one for one in heard if one.subject == subject):
        if one.is_broken:
            since = since or one.at
        elif since is not None:
            spans.append(Span(since, one.at))
            since = None
    return [*spans, Span(since, datetime.max.replace(tzinfo=UTC))] if since is not None else spans


SUBJECTS = (READABLE, "rpo", "backup-age", "archive-lag", "drill")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_objective_broke_in_this_month(alarms: Lived, subject: str) -> None:
    assert alarms.truth[subject]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_alarm_comes_within_one_interval(alarms: Lived, subject: str) -> None:
    """While nothing judges, the switch goes red by silence. A state that cannot be read is an alarm of its own."""
    known = problems(alarms.hook, subject) + problems(alarms.hook, READABLE)
    for broken in (span for span in alarms.truth[subject] if span.end - span.begin > LIMIT):
        due = Span(broken.begin, broken.begin + LIMIT)
        if any(due.has(moment) for moment in alarms.judged):
            assert any(span.begin < due.end and span.end > due.begin for span in known), (subject, broken)
        else:
            assert any(span.begin <= broken.begin + GRACE and span.end > broken.begin for span in alarms.dark), broken


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_alarm_is_false_and_every_alarm_ends(alarms: Lived, subject: str) -> None:
    for known in problems(alarms.hook, subject):
        near = [span for span in alarms.truth[subject] if span.widened(LOOK, LOOK).has(known.begin)]
        assert near or known.begin < alarms.begin, known
    for broken in alarms.truth[subject]:
        # A judgement that would end it may be as far away as a dead agent or a repository that cannot be read.
        silent = [span.end for span in (*alarms.dark, *alarms.truth[READABLE]) if span.has(broken.end)]
        end = max((broken.end, *silent)) + LIMIT
        assert not [span for span in problems(alarms.hook, subject) if span.begin <= broken.begin and span.end > end]


def test_the_switch_is_red_whenever_something_is_broken_and_never_else(alarms: Lived) -> None:
    broken = [span for spans in alarms.truth.values() for span in spans]
    for span in broken:
        if span.end - span.begin > GRACE + LOOK:
            assert [dark for dark in alarms.dark if dark.begin <= span.begin + GRACE + LOOK and dark.end > span.begin]
    silent = [Span(one, two) for one, two in pairwise(alarms.judged) if two - one > GRACE]
    for dark in alarms.dark:
        reasons = [span for span in (*broken, *silent) if span.widened(LOOK, LIMIT).has(dark.begin)]
        assert reasons, dark


def test_a_problem_is_told_once_and_again_every_six_hours(alarms: Lived) -> None:
    told = [one.at for one in alarms.hook if one.subject == "drill" and one.is_broken and one.at >= alarms.begin]
    assert len(told) > 8
    assert min(later - earlier for earlier, later in pairwise(told)) >= timedelta(hours=6)
