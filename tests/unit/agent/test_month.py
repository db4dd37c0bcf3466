"""A month of the agent in simulated time, with faults of every kind one after the other."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tests.unit.agent.test_supervisor import (
    ARCHIVE,
    BACKUP,
    DAY,
    DRILL,
    HOUR,
    JOBS,
    check_no_overlap,
    month,
    settings,
    slow,
)
from tests.unit.support.agent_month import AgentMonth
from zsnapdb.planning.agent_jobs import JobKind, JobName

__all__ = ["month"]


@pytest.mark.parametrize(
    "begins", [datetime(2026, 10, 10, 20, 1, tzinfo=UTC), datetime(2027, 3, 12, 20, 1, tzinfo=UTC)]
)
def test_a_month_of_faults_keeps_every_schedule_and_makes_up_for_what_was_missed_once(
    month: AgentMonth, begins: datetime
) -> None:
    """Clocks change once in each month. Meanwhile: a crash, a reload, a dead server, slow jobs, steps of the clock."""
    month.time, month.answer = begins, slow
    month.boot()
    month.live(days=4)
    month.crash()
    month.live(days=2)
    before = Counter(run.words for run in month.runs)
    month.boot()
    month.live(hours=12)
    assert Counter(run.words for run in month.runs)[("prune", "main")] - before[("prune", "main")] == 2
    month.answer = lambda words: (1.0, 5) if words in (BACKUP, ARCHIVE) else slow(words)
    month.live(days=3)
    failed = month.records.run(JobName("main", JobKind.BACKUP))
    assert failed is not None
    assert failed.failures > 60
    month.answer = slow
    month.live(days=1)
    healed = month.records.run(JobName("main", JobKind.BACKUP))
    assert healed is not None
    assert (healed.failures, healed.exit_code) in ((0, 0), (0, None))
    assert month.agent is not None
    month.agent.use(settings(JOBS.replace("41 5", "41 6")))
    month.live(days=12)
    for error in (timedelta(hours=5), timedelta()):
        month.clock_error = error
        month.live(days=2)
    check_no_overlap(month)
    drills = month.started(*DRILL)
    assert max(later - earlier for earlier, later in pairwise(drills)) <= 3 * DAY
    assert max(later - earlier for earlier, later in pairwise(drills[-14:])) <= DAY + 8 * HOUR
    assert len(month.started("backup", "main", "--full")) in (4, 5)
