"""Every change of the evidence log is found, and each day says what was done."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta

import pytest

from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.evidence import NOTHING, RememberedLink, StoredLink, findings
from zsnapdb.planning.health.daily_summary import CompletedRun, days, judge_day
from zsnapdb.planning.health.objectives import Objective


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def chain(count: int) -> list[StoredLink]:
    made: list[StoredLink] = []
    for number in range(1, count + 1):
        before = made[-1].sha256 if made else NOTHING
        made.append(StoredLink(number, sha(f"{number}{before}"), before))
    return made


WHOLE = chain(5)
END = RememberedLink(5, WHOLE[-1].sha256)


def altered(number: int) -> list[StoredLink]:
    """Return the chain after the object of this record was replaced by another that names the same one before."""
    links = list(WHOLE)
    links[number - 1] = StoredLink(number, sha("another"), links[number - 1].previous)
    return links


def removed(*numbers: int) -> list[StoredLink]:
    return [link for link in WHOLE if link.number not in numbers]


def swapped(one: int, other: int) -> list[StoredLink]:
    """Return the chain after two objects changed places."""
    by_number = {link.number: link for link in WHOLE}
    first, second = by_number[one], by_number[other]
    by_number[one] = StoredLink(one, second.sha256, second.previous)
    by_number[other] = StoredLink(other, first.sha256, first.previous)
    return list(by_number.values())


def test_a_chain_that_was_not_touched_is_whole() -> None:
    assert (
        findings(WHOLE)
        == findings(WHOLE, END)
        == findings([])
        == findings(WHOLE, RememberedLink(3, WHOLE[2].sha256))
        == ()
    )


@pytest.mark.parametrize("number", range(1, 6))
def test_a_record_that_was_altered_is_found(number: int) -> None:
    assert findings(altered(number), END)


@pytest.mark.parametrize("numbers", [(1,), (3,), (5,), (4, 5), (1, 2), (2, 3), (1, 2, 3, 4, 5)])
def test_records_that_were_removed_are_found(numbers: tuple[int, ...]) -> None:
    assert findings(removed(*numbers), END)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 4), (1, 5), (4, 5)])
def test_records_that_changed_places_are_found(one: int, other: int) -> None:
    assert findings(swapped(one, other))


def test_a_chain_that_was_written_anew_is_found_by_what_is_remembered() -> None:
    anew = [StoredLink(link.number, sha(f"anew {link.number}"), NOTHING) for link in WHOLE[:1]]
    for number in range(2, 7):
        anew.append(StoredLink(number, sha(f"anew {number}"), anew[-1].sha256))
    assert findings(anew) == ()
    assert [finding.number for finding in findings(anew, END)] == [5]


def test_a_record_that_cannot_be_believed_is_named_once() -> None:
    links = [StoredLink(2, link.sha256, NOTHING, "bad signature") if link.number == 2 else link for link in WHOLE]
    (found,) = findings(links, END)
    assert found.text == "record 2 is not valid: bad signature"


MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC)
LAST = date(2026, 11, 3)


def run(hours: float, job: str = "backup", code: int = 0) -> CompletedRun:
    return CompletedRun(job, MIDNIGHT + timedelta(hours=hours), 60.0, code)


def test_each_day_counts_its_runs_and_the_longest_time_without_a_backup() -> None:
    runs = [run(36.5), run(6), run(18), run(20, code=6), run(40, "drill", 11), run(41, "drill"), run(42, "prune")]
    first, second, third = days(runs, MIDNIGHT.date(), LAST, MIDNIGHT + timedelta(hours=60))
    assert (first.good, first.failed, first.backups, first.longest_without_backup) == (2, 1, 2, 12 * 3600.0)
    assert (second.good, second.failed, second.drills, second.failed_drills) == (3, 1, 2, 1)
    assert second.longest_without_backup == 18.5 * 3600.0
    assert (third.good, third.backups, third.longest_without_backup) == (0, 0, 23.5 * 3600.0)


def test_a_day_before_the_first_backup_has_none_and_a_day_to_come_is_left_out() -> None:
    (only,) = days([run(30, "verify")], MIDNIGHT.date(), LAST, MIDNIGHT + timedelta(hours=20))
    assert only.longest_without_backup is None


def test_silence_counts_as_time_without_a_backup() -> None:
    *_, last = days([run(1)], MIDNIGHT.date(), MIDNIGHT.date() + timedelta(days=29), MIDNIGHT + timedelta(days=30))
    assert last.longest_without_backup == (30 * 24 - 1) * 3600.0


def test_a_day_keeps_an_objective_if_the_age_never_grew_over_its_limit_and_something_was_done_at_all() -> None:
    objectives = ObjectiveSettings(backup_age=12 * 3600.0, drill_age=86400.0, rpo=60.0)
    runs = [run(36.5), run(6), run(18), run(40, "drill", 11), run(50, "drill")]
    first, second, third = days(runs, MIDNIGHT.date(), LAST, MIDNIGHT + timedelta(hours=60))
    assert [(one.objective, one.is_kept) for one in judge_day(first, objectives).objectives] == [
        (Objective.BACKUP_AGE, True),
        (Objective.DRILL, False),
    ]
    assert [one.is_kept for one in judge_day(second, objectives).objectives] == [False, False]
    assert [one.is_kept for one in judge_day(third, objectives).objectives] == [False, True]
    assert judge_day(first, ObjectiveSettings()).objectives == ()
