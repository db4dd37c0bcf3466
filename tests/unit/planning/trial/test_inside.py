"""The position of a server in a drilled machine lies between what it had published before and after the snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.planning.trial.drill import (
    GuestServerAnswer,
    InsideResult,
    binlog_of_start,
    judge_identity,
    judge_position,
)

OWN, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
LOGS = (("binlog.000007", 4096), ("binlog.000008", 330))
MYSQL = GuestServerAnswer(
    Flavour.MYSQL, "9.7.4", OWN, 1, LOGS, GtidSet.parse(f"{OWN}:1-15"), GtidSet.parse(f"{OWN}:1-15")
)
MARIADB = GuestServerAnswer(
    Flavour.MARIADB, "11.8.3-MariaDB", None, 1, LOGS, GtidPosition.parse("0-1-15"), GtidPosition.parse("0-1-15")
)


def at(flavour: Flavour, gtids: str | None, file: str = "binlog.000007", offset: int = 4096) -> Position:
    return Position(
        flavour, BinlogCoordinates(file, offset), None if gtids is None else parse_gtids(flavour, gtids), "manifest"
    )


@given(before=st.integers(1, 30), inside=st.integers(1, 30), more=st.integers(0, 10))
def test_a_state_is_proved_exactly_if_it_lies_between_the_bounds(before: int, inside: int, more: int) -> None:
    after = before + more
    expected = InsideResult.PROVED if before <= inside <= after else InsideResult.WRONG
    for answer, form, parse in (
        (MYSQL, f"{OWN}:1-%d", GtidSet.parse),
        (MARIADB, "0-1-%d", GtidPosition.parse),
    ):
        here = replace(answer, recovered=parse(form % inside))
        bounds = at(answer.flavour, form % before), at(answer.flavour, form % after)
        assert judge_position(bounds[0], bounds[1], here).result is expected


def test_transactions_that_were_lost_are_named_though_others_were_written_under_their_numbers_since() -> None:
    for answer, form in ((MYSQL, f"{OWN}:1-%d"), (MARIADB, "0-1-%d")):
        written_since = replace(answer, executed=parse_gtids(answer.flavour, form % 30))
        verdict = judge_position(at(answer.flavour, form % 18), at(answer.flavour, form % 20), written_since)
        assert verdict.result is InsideResult.WRONG
        assert "lacks" in verdict.reason
        assert "18" in verdict.reason


def test_a_replica_that_does_not_log_has_what_it_applied_of_others() -> None:
    replica = replace(MYSQL, recovered=GtidSet.parse(f"{OWN}:1-2"), executed=GtidSet.parse(f"{OWN}:1-2,{OTHER}:1-90"))
    before = at(Flavour.MYSQL, f"{OWN}:1-2,{OTHER}:1-80")
    assert judge_position(before, None, replica).result is InsideResult.PROVED
    own = at(Flavour.MYSQL, f"{OWN}:1-3,{OTHER}:1-80")
    assert judge_position(own, None, replace(replica, executed=own.gtids)).result is InsideResult.WRONG


def test_without_an_upper_bound_the_reason_says_so() -> None:
    verdict = judge_position(at(Flavour.MARIADB, "0-1-10"), None, MARIADB)
    assert verdict.result is InsideResult.PROVED
    assert verdict.reason.endswith("nothing bounds it from above")


@pytest.mark.parametrize(
    ("before", "after", "expected", "reason"),
    [
        (("binlog.000007", 4096), ("binlog.000007", 5000), InsideResult.PROVED, "transactions were not compared"),
        (("binlog.000007", 4097), ("binlog.000007", 5000), InsideResult.WRONG, "has 4096 bytes"),
        (("binlog.000007", 400), ("binlog.000007", 500), InsideResult.WRONG, "published 500 after"),
        (("binlog.000006", 400), ("binlog.000007", 4096), InsideResult.UNPROVABLE, "has removed its binlog"),
        (("binlog.000009", 4), ("binlog.000009", 4), InsideResult.WRONG, "has no binlog binlog.000009"),
    ],
)
def test_without_gtids_binlog_files_and_offsets_decide(
    before: tuple[str, int], after: tuple[str, int], expected: InsideResult, reason: str
) -> None:
    answer = replace(MYSQL, recovered=None, executed=None)
    verdict = judge_position(at(Flavour.MYSQL, None, *before), at(Flavour.MYSQL, None, *after), answer)
    assert (verdict.result, reason in verdict.reason) == (expected, True), verdict


def test_a_server_without_a_binlog_is_unprovable_and_one_that_lost_its_gtids_is_wrong() -> None:
    nothing = Position(Flavour.MYSQL, None, None, "manifest")
    assert judge_position(nothing, nothing, MYSQL).result is InsideResult.UNPROVABLE
    without = replace(MYSQL, recovered=None)
    assert judge_position(at(Flavour.MYSQL, f"{OWN}:1"), None, without).result is InsideResult.WRONG


def test_the_binlog_of_the_start_is_the_first_after_those_of_the_backup_though_logs_were_rotated_since() -> None:
    names = ["b.000007", "b.000008", "b.000009"]
    assert binlog_of_start(names, "b.000007") == "b.000008"
    assert binlog_of_start(names, "b.000006") == "b.000007"
    assert binlog_of_start(names, "b.000009") == "b.000009"
    assert binlog_of_start(names, None) == "b.000009"


def test_another_server_is_not_the_one_that_was_backed_up() -> None:
    expected = (Flavour.MYSQL, OWN.upper(), 1)
    assert judge_identity(*expected, MYSQL).result is InsideResult.PROVED
    for other in (replace(MYSQL, server_uuid=OTHER), replace(MYSQL, server_id=2), MARIADB):
        assert judge_identity(*expected, other).result is InsideResult.WRONG
