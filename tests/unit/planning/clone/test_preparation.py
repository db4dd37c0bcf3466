"""When the set of a new clone is masked once for all its clones, and when such a form goes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from zsnapdb.planning.clone.lease import LeaseVerdict, SourceKind, stamp
from zsnapdb.planning.clone.masking import MaskingCase, MaskingWay, UnusedSet, judge_set, masking_choice

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
WEEK = 7 * 86400.0
FIRST = MaskingCase(
    SourceKind.BACKUP,
    "new",
    "",
    is_stored=True,
    names_latest=True,
    starts=True,
    is_ephemeral=False,
    keep_unused=WEEK,
)


@pytest.mark.parametrize(
    ("case", "way", "said"),
    [
        (FIRST, MaskingWay.PREPARES, "is the newest"),
        (replace(FIRST, kind=SourceKind.REPOSITORY), MaskingWay.PREPARES, "is the newest"),
        (replace(FIRST, source_rules="old"), MaskingWay.PREPARES, "not masked by the rules of now"),
        (replace(FIRST, rules=""), MaskingWay.NONE, "nothing"),
        (replace(FIRST, is_stored=False), MaskingWay.ALONE, "no stored backup"),
        (replace(FIRST, source_rules="new"), MaskingWay.PREPARED, "by the rules of now"),
        (replace(FIRST, source_rules="new", kind=SourceKind.COMMIT), MaskingWay.PREPARED, "by the rules of now"),
        (replace(FIRST, kind=SourceKind.LIVE), MaskingWay.ALONE, "no other clone"),
        (replace(FIRST, kind=SourceKind.POINT), MaskingWay.ALONE, "a point"),
        (replace(FIRST, kind=SourceKind.COMMIT), MaskingWay.ALONE, "would keep the clone"),
        (replace(FIRST, kind=SourceKind.SNAPSHOT), MaskingWay.ALONE, "another program"),
        (replace(FIRST, kind=SourceKind.REPLACED), MaskingWay.ALONE, "server that was replaced"),
        (replace(FIRST, starts=False), MaskingWay.ALONE, "started later"),
        (replace(FIRST, is_ephemeral=True), MaskingWay.ALONE, "leaves nothing"),
        (replace(FIRST, names_latest=False), MaskingWay.ALONE, "`zsnapdb clone prepare` prepares others"),
        (replace(FIRST, keep_unused=0), MaskingWay.ALONE, "keep_unused is 0"),
    ],
)
def test_only_what_the_next_clone_is_made_of_too_is_masked_for_all(
    case: MaskingCase, way: MaskingWay, said: str
) -> None:
    choice = masking_choice(case)
    assert (choice.way, said in choice.reason) == (way, True), choice


@pytest.mark.parametrize(
    ("clones", "idle", "short", "verdict", "said"),
    [
        (2, 30 * 86400, "it is full", LeaseVerdict.KEEP, "2 clones depend on it"),
        (0, 0, "", LeaseVerdict.KEEP, "kept 7 d after that"),
        (0, 7 * 86400, "", LeaseVerdict.REAP, "not used since"),
        (0, 3599, "it is full", LeaseVerdict.KEEP, "last used at"),
        (0, 3600, "it is full", LeaseVerdict.REAP, "it is full"),
    ],
)
def test_a_form_goes_when_it_is_not_used_and_earlier_where_space_is_short(
    clones: int, idle: int, short: str, verdict: LeaseVerdict, said: str
) -> None:
    judged = judge_set(UnusedSet(clones, stamp(NOW - timedelta(seconds=idle)), is_form=True), WEEK, short, NOW)
    assert (judged.verdict, said in judged.reason) == (verdict, True), judged


def test_a_form_whose_last_use_cannot_be_read_stays() -> None:
    assert judge_set(UnusedSet(0, "yesterday", is_form=True), WEEK, "it is full", NOW).verdict is LeaseVerdict.KEEP


def test_a_received_set_stays_where_space_is_short_as_it_may_not_come_again() -> None:
    received = UnusedSet(0, stamp(NOW - timedelta(days=6)), is_form=False)
    assert judge_set(received, WEEK, "it is full", NOW).verdict is LeaseVerdict.KEEP
