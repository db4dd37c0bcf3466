"""Points in time: how they may be asked for, which backup and binlogs lead there, and where exactly the replay stops."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.errors import NotThere, PreflightError, ZsnapdbError
from zsnapdb.gtid import GtidPosition, GtidSet
from zsnapdb.model import Flavour
from zsnapdb.planning.restore.points import (
    Base,
    Log,
    Scanned,
    boundary_in,
    choose,
    is_past,
    path_from,
    replays,
    start_in,
)
from zsnapdb.planning.restore.targets import AtBackup, AtGtids, AtTime, BeforeGtid, Latest, parse_target, parse_time

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "aaaaaaaa-71ca-11e1-9e33-c80aa9429562"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def mysql(first: int, last: int, source: str = UUID) -> GtidSet:
    return GtidSet.of([(source, (first, last))])


def base(
    backup_id: str = "20261120T120000Z-0001", gtids: int = 10, file: str = "binlog.000001", offset: int = 1100
) -> Base:
    return Base(backup_id, Flavour.MYSQL, UUID, 1, mysql(1, gtids), file, offset)


def log(
    number: int,
    first: int,
    last: int,
    *,
    incarnation: str = "a",
    uuid: str = UUID,
    source: str = UUID,
    gap: str | None = None,
) -> Log:
    """A binlog of transactions first to last, each 100 bytes from 100 on and committed a second after the one before."""
    return Log(
        incarnation,
        f"binlog.{number:06d}",
        uuid,
        1,
        mysql(1, first - 1, source) if first > 1 else GtidSet(),
        mysql(first, last, source),
        100,
        100 + 100 * (last - first + 1),
        last - first + 1,
        at(first),
        at(last),
        gap,
        f"{source}:{last}",
    )


def scan(found: Log, first: int, last: int) -> list[Scanned]:
    return [
        Scanned(f"{UUID}:{n}", 100 + 100 * (n - first), 200 + 100 * (n - first), at(n)) for n in range(first, last + 1)
    ]


LOGS = (log(1, 1, 20), log(2, 21, 30), log(3, 31, 40))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("latest", Latest()),
        ("latest-backup", AtBackup(None)),
        ("20261120T120000Z-0001", AtBackup("20261120T120000Z-0001")),
        ("2026-11-20T12:00:00Z", AtTime(NOON)),
        ("2026-11-20 13:00+01:00", AtTime(NOON)),
        ("2026-11-20 13:00:00 Europe/Berlin", AtTime(NOON)),
        ("2026-11-20T12:00:00.25Z", AtTime(at(0.25))),
        (f"{UUID}:7", AtGtids(f"{UUID}:7")),
        (f"{UUID}:1-7", AtGtids(f"{UUID}:1-7")),
        ("0-1-42", AtGtids("0-1-42")),
        (f"before-{UUID}:7", BeforeGtid(f"{UUID}:7")),
        ("before-0-1-42", BeforeGtid("0-1-42")),
    ],
)
def test_the_forms_of_a_point(text: str, wanted: object) -> None:
    assert parse_target(text) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-20T12:00:00", "does not say its zone"),
        ("2026-11-20T12:00:00 Nowhere/Land", "is no time"),
        ("2026-13-20T12:00:00Z", "is no time"),
        ("2026-10-25 02:30 Europe/Berlin", "clocks were changed then"),
        ("2026-03-29 02:30 Europe/Berlin", "clocks were changed then"),
        ("yesterday", "is no point in time"),
        ("2026-11-20", "is a day"),
        ("", "is no point in time"),
        (f"before-{UUID}:1-7", "is no point in time"),
    ],
)
def test_what_could_mean_two_things_or_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(PreflightError, match=words):
        parse_target(text)


def test_a_gtid_that_looks_like_a_day_can_be_named_with_a_zero() -> None:
    assert parse_target("02026-11-20") == AtGtids("02026-11-20")


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2090, 1, 1)), st.integers(-12, 14))
def test_a_time_with_an_offset_is_the_moment_it_says(local: datetime, hours: int) -> None:
    text = f"{local.isoformat()}{hours:+03d}:00"
    assert parse_time(text) == (local - timedelta(hours=hours)).replace(tzinfo=UTC)


def test_binlogs_are_followed_from_where_the_backup_stands() -> None:
    assert [found.file for found in path_from(base(), LOGS).logs] == ["binlog.000001", "binlog.000002", "binlog.000003"]
    assert [found.file for found in path_from(base(gtids=30, file="binlog.000002"), LOGS).logs] == [
        "binlog.000002",
        "binlog.000003",
    ]


def test_a_hole_ends_the_path_and_is_told() -> None:
    path = path_from(base(), (LOGS[0], LOGS[2]))
    assert ([found.file for found in path.logs], path.broken) == (
        ["binlog.000001"],
        "transactions before binlog.000003 are in no archived binlog",
    )
    path = path_from(base(), (LOGS[0], log(2, 21, 30, gap="binlog.000002 was purged"), LOGS[2]))
    assert (len(path.logs), path.broken) == (1, "before binlog.000002: binlog.000002 was purged")


def test_binlogs_of_another_server_with_other_transactions_are_not_taken() -> None:
    path = path_from(base(), (log(1, 1, 20, uuid=OTHER, source=OTHER),))
    assert (path.logs, path.broken) == ((), "no archived binlog continues the backup")


def test_after_a_failover_the_new_sources_binlogs_go_on_only_if_they_hold_what_was_reached() -> None:
    taken_over = log(1, 21, 50, incarnation="b", uuid=OTHER)
    assert [found.incarnation for found in path_from(base(), (LOGS[0], taken_over)).logs] == ["a", "b"]
    behind = log(1, 16, 18, incarnation="b", uuid=OTHER)
    assert [found.incarnation for found in path_from(base(), (LOGS[0], behind)).logs] == ["a"]


def test_a_restored_server_that_went_another_way_does_not_lead_into_what_was_thrown_away() -> None:
    """Incarnation b went on from transaction 10 with its own numbers.

    A backup of it is not followed by what a had after 10.
    """
    new = Log("b", "binlog.000009", OTHER, 1, mysql(1, 10), mysql(1, 5, OTHER), 100, 600, 5, at(100), at(105), None)
    found = Base(
        "20261120T130000Z-0002", Flavour.MYSQL, OTHER, 1, mysql(1, 10).union(mysql(1, 2, OTHER)), "binlog.000009", 300
    )
    assert [(one.incarnation, one.file) for one in path_from(found, (*LOGS, new)).logs] == [("b", "binlog.000009")]
    assert [one.incarnation for one in path_from(base(), (*LOGS, new)).logs] == ["a", "a", "a"]


def test_the_newest_backup_that_leads_there_is_taken() -> None:
    backups = (base(), base("20261120T120025Z-0002", 25, "binlog.000002", 600))
    chosen = choose(AtTime(at(35)), backups, LOGS, NOW)
    assert (chosen.path.base.backup_id, [found.file for found in chosen.logs]) == (
        "20261120T120025Z-0002",
        ["binlog.000002", "binlog.000003"],
    )
    assert choose(AtTime(at(15)), backups, LOGS, NOW).path.base.backup_id == "20261120T120000Z-0001"
    assert choose(AtGtids(f"{UUID}:24"), backups, LOGS, NOW).path.base.backup_id == "20261120T120000Z-0001"
    assert choose(AtGtids(f"{UUID}:26"), backups, LOGS, NOW).path.base.backup_id == "20261120T120025Z-0002"
    assert choose(BeforeGtid(f"{UUID}:26"), backups, LOGS, NOW).path.base.backup_id == "20261120T120025Z-0002"
    assert choose(AtGtids(f"{UUID}:1-25"), backups, LOGS, NOW).exact_backup
    assert choose(Latest(), backups, LOGS, NOW).logs == LOGS[1:]
    assert choose(AtBackup(None), backups, (), NOW).path.base == backups[1]


@pytest.mark.parametrize(
    ("to", "error", "words"),
    [
        (AtTime(at(-1)), NotThere, "no backup is older"),
        (AtTime(at(41)), NotThere, "later than what is archived"),
        (AtTime(NOW + timedelta(days=1)), PreflightError, "in the future"),
        (AtGtids(f"{UUID}:41"), NotThere, "neither in a backup nor in the archived binlogs"),
        (AtGtids(f"{UUID}:3"), NotThere, "every backup has"),
        (AtGtids("0-1-3"), PreflightError, "is no GTID of mysql"),
        (AtBackup("20200101T000000Z-0000"), NotThere, "holds no backup 20200101T000000Z-0000"),
    ],
)
def test_what_cannot_be_reached_is_said(to: AtTime, error: type[ZsnapdbError], words: str) -> None:
    with pytest.raises(error, match=words):
        choose(to, (base(),), LOGS, NOW)


def test_a_time_behind_a_hole_is_not_reached() -> None:
    with pytest.raises(NotThere, match=r"transactions before binlog\.000003 are in no archived binlog"):
        choose(AtTime(at(35)), (base(),), (LOGS[0], LOGS[2]), NOW)


@given(st.integers(11, 39))
def test_a_boundary_is_right_behind_or_before_what_was_asked_for(number: int) -> None:
    for to, last in (
        (AtTime(at(number)), number),
        (AtTime(at(number + 0.5)), number),
        (AtGtids(f"{UUID}:{number}"), number),
        (BeforeGtid(f"{UUID}:{number}"), number - 1),
    ):
        chosen = choose(to, (base(),), LOGS, NOW)
        found = chosen.logs[-1]
        first = {1: 1, 2: 21, 3: 31}[int(found.file[-1])]
        scanned = scan(found, first, first + found.transactions - 1)
        start = 1100 if len(chosen.logs) == 1 else 100
        boundary = boundary_in(chosen, start, scanned)
        assert boundary.gtids == mysql(1, last)
        assert boundary.following is None or boundary.following.gtid == f"{UUID}:{last + 1}"
        assert boundary.stop == max(start, 100 + 100 * (last - first + 1))
        steps = replays(chosen.path.base, chosen.logs, 1100, boundary.stop, boundary.gtids, 1)
        replayed = sum((part.stop or 0) - part.start for step in steps for part in step.logs)
        assert replayed == 100 * (last - 10)
        assert not steps or steps[-1].gtids == str(mysql(1, last))


def test_with_a_clock_set_back_the_last_one_stamped_by_then_decides_and_a_note_says_so() -> None:
    chosen = choose(AtTime(at(15)), (base(),), LOGS, NOW)
    scanned = scan(chosen.logs[-1], 1, 20)
    scanned[16] = Scanned(f"{UUID}:17", scanned[16].start, scanned[16].end, at(12))
    boundary = boundary_in(chosen, 1100, scanned)
    assert boundary.gtids == mysql(1, 17)
    assert boundary.last == scanned[16]
    assert boundary.notes == (
        "1 transactions stamped later than the time asked for come before it: the server's clock was set back",
    )


def test_a_backup_that_was_begun_before_and_snapshotted_after_the_time_is_past_it() -> None:
    scanned = scan(LOGS[0], 1, 20)
    assert is_past(AtTime(at(9)), 1100, scanned)
    assert not is_past(AtTime(at(10)), 1100, scanned)
    assert not is_past(Latest(), 1100, scanned)


def test_where_the_replay_starts_is_found_by_gtid_in_another_servers_binlog() -> None:
    elsewhere = base(gtids=5, file="other.000009")
    assert start_in(elsewhere, LOGS[0], scan(LOGS[0], 1, 20)) == 600
    assert start_in(base(), LOGS[0], ()) == 1100


def test_mariadb_positions_are_followed_by_their_heads() -> None:
    def head(number: int) -> GtidPosition:
        return GtidPosition({0: (1, number)})

    logs = tuple(
        Log(
            "a",
            f"b.{n:06d}",
            None,
            1,
            head(10 * n),
            head(10 * n + 10),
            100,
            1100,
            10,
            at(10 * n),
            at(10 * n + 10),
            None,
            f"0-1-{10 * n + 10}",
        )
        for n in (1, 2)
    )
    backup = Base("20261120T120000Z-0001", Flavour.MARIADB, None, 1, head(15), "b.000001", 600)
    chosen = choose(AtGtids("0-1-24"), (backup,), logs, NOW)
    assert chosen.logs == logs
    scanned = [Scanned(f"0-1-{n}", 100 * (n - 20), 100 * (n - 19), at(n)) for n in range(21, 31)]
    boundary = boundary_in(chosen, 100, scanned)
    assert (boundary.gtids, boundary.stop) == (head(24), 500)
    assert choose(BeforeGtid("0-1-16"), (backup,), logs, NOW).logs == logs[:1]
