"""Points in time: their forms, which backup and binlogs lead to them, and where exactly the replay stops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, backup_time
from zsnapdb.base.errors import AmbiguousPointError, NotFound, PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, joined
from zsnapdb.planning.binlog.route import BackupPoint, EndKind, commit_time, follow
from zsnapdb.planning.restore.point_forms import AtBackup, AtGtids, AtTime, BeforeGtid, Latest, parse_target, parse_time
from zsnapdb.planning.restore.replays import (
    Boundary,
    Scanned,
    boundary_in,
    find_stop,
    is_past,
    newest_in_backup,
    replays,
    start_in,
)
from zsnapdb.planning.restore.route_choice import RestoreRoute, choose

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "aaaaaaaa-71ca-11e1-9e33-c80aa9429562"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def mysql(first: int, last: int, source: str = UUID) -> GtidSet:
    return GtidSet.of([(source, (first, last))])


def microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def point(backup_id: str, flavour: Flavour, server: str, gtids: Gtids, file: str, offset: int) -> BackupPoint:
    taken = microseconds(backup_time(backup_id))
    return BackupPoint(backup_id, taken, taken, server, BinlogCoordinates(file, offset), gtids, flavour)


def base(
    backup_id: str = "20261120T120010Z-0001", gtids: int = 10, file: str = "binlog.000001", offset: int = 1100
) -> BackupPoint:
    return point(backup_id, Flavour.MYSQL, UUID, mysql(1, gtids), file, offset)


@dataclass(frozen=True)
class Log:
    """An archived binlog of transactions that are committed from `first` to `last`."""

    incarnation: str
    name: str
    server: str
    previous: Gtids | None
    gtids: Gtids
    start: int
    end: int
    first: datetime
    last: datetime
    gap: str | None = None
    is_rotated: bool = True
    is_anonymous: bool = False
    fingerprint: str = ""

    @property
    def number(self) -> int:
        return int(self.name.rpartition(".")[2])

    @property
    def size(self) -> int:
        return self.end

    @property
    def transactions(self) -> int:
        return (self.end - self.start) // 100

    @property
    def reached(self) -> Gtids | None:
        return joined(self.previous, self.gtids)

    @property
    def created(self) -> int:
        return int(self.first.timestamp())

    @property
    def first_commit(self) -> int | None:
        return microseconds(self.first)

    @property
    def last_commit(self) -> int | None:
        return microseconds(self.last)


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
    """A binlog of transactions first to last, each 100 bytes from 100 on and committed a second after the previous."""
    before = mysql(1, first - 1, source) if first > 1 else GtidSet()
    end = 100 + 100 * (last - first + 1)
    own = mysql(first, last, source)
    return Log(incarnation, f"binlog.{number:06d}", uuid, before, own, 100, end, at(first), at(last), gap)


def scan(first: int, last: int) -> list[Scanned]:
    return [
        Scanned(f"{UUID}:{n}", 100 + 100 * (n - first), 200 + 100 * (n - first), at(n)) for n in range(first, last + 1)
    ]


def bounded(chosen: RestoreRoute, start: int, scanned: list[Scanned]) -> Boundary:
    """Return where the replay stops in the last binlog of a choice, whose transactions are `scanned`."""
    end = find_stop(chosen, start, lambda _: scanned, NOW)[1] if isinstance(chosen.target, AtTime) else None
    return boundary_in(chosen, start, scanned, end)


LOGS = (log(1, 1, 20), log(2, 21, 30), log(3, 31, 40))


@pytest.mark.parametrize(
    ("text", "target"),
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
def test_the_forms_of_a_point(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-20T12:00:00", "does not say its zone"),
        ("2026-11-20T12:00:00 Nowhere/Land", "is not a time"),
        ("2026-13-20T12:00:00Z", "is not a time"),
        ("2026-10-25 02:30 Europe/Berlin", "is ambiguous, because clocks were changed"),
        ("2026-03-29 02:30 Europe/Berlin", "is ambiguous, because clocks were changed"),
        ("yesterday", "is not a point in time"),
        ("2026-11-20", "is a day"),
        ("", "is not a point in time"),
        (f"before-{UUID}:1-7", "is not a point in time"),
    ],
)
def test_what_could_mean_two_things_or_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_target(text)


def test_a_gtid_that_looks_like_a_day_can_be_named_with_a_zero() -> None:
    assert parse_target("02026-11-20") == AtGtids("02026-11-20")


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2090, 1, 1)), st.integers(-12, 14))
def test_a_time_with_an_offset_is_the_moment_it_says(local: datetime, hours: int) -> None:
    text = f"{local.isoformat()}{hours:+03d}:00"
    assert parse_time(text) == (local - timedelta(hours=hours)).replace(tzinfo=UTC)


def test_binlogs_are_followed_from_where_the_backup_stands() -> None:
    assert follow(base(), LOGS).files == LOGS
    assert follow(base("20261120T120030Z-0002", 30, "binlog.000002"), LOGS).files == LOGS[1:]


def test_a_gap_ends_the_route_and_is_told() -> None:
    route = follow(base(), (LOGS[0], LOGS[2]))
    assert (route.files, route.end.kind) == (LOGS[:1], EndKind.GAP)
    assert f"transactions {UUID}:21-30: the files between binlog.000001 and number 3" in route.end.reason
    route = follow(base(), (LOGS[0], log(2, 21, 30, gap="binlog.000002 was purged"), LOGS[2]))
    assert (len(route.files), route.end.reason) == (1, "before binlog.000002: binlog.000002 was purged")


def test_binlogs_of_another_server_with_other_transactions_are_not_taken() -> None:
    route = follow(base(), (log(1, 1, 20, uuid=OTHER, source=OTHER),))
    assert (route.files, route.end.kind) == ((), EndKind.NOT_ARCHIVED)


def test_after_a_failover_the_new_sources_binlogs_go_on_only_if_they_hold_what_was_reached() -> None:
    taken_over = log(1, 21, 50, incarnation="b", uuid=OTHER)
    assert [file.incarnation for file in follow(base(), (LOGS[0], taken_over)).files] == ["a", "b"]
    behind = log(1, 16, 18, incarnation="b", uuid=OTHER)
    assert [file.incarnation for file in follow(base(), (LOGS[0], behind)).files] == ["a"]


def test_a_restored_server_that_went_another_way_does_not_lead_into_what_was_dropped() -> None:
    """Incarnation b went on from transaction 10 with its own numbers.

    A backup of it is not followed by what a had after 10.
    """
    new = Log("b", "binlog.000009", OTHER, mysql(1, 10), mysql(1, 5, OTHER), 100, 600, at(100), at(105))
    both = mysql(1, 10).union(mysql(1, 2, OTHER))
    backup = point("20261120T130000Z-0002", Flavour.MYSQL, OTHER, both, "binlog.000009", 300)
    assert follow(backup, (*LOGS, new)).files == (new,)
    route = follow(base(), (*LOGS, new))
    assert (route.files, route.end.kind) == (LOGS, EndKind.LOST_IN_FAILOVER)


def test_the_newest_backup_that_leads_there_is_taken() -> None:
    backups = (base(), base("20261120T120025Z-0002", 25, "binlog.000002", 600))
    chosen = choose(AtTime(at(35)), backups, LOGS, NOW)
    assert (chosen.point.backup_id, [file.name for file in chosen.files]) == (
        "20261120T120025Z-0002",
        ["binlog.000002", "binlog.000003"],
    )
    assert choose(AtTime(at(15)), backups, LOGS, NOW).point.backup_id == "20261120T120010Z-0001"
    assert choose(AtGtids(f"{UUID}:24"), backups, LOGS, NOW).point.backup_id == "20261120T120010Z-0001"
    assert choose(AtGtids(f"{UUID}:26"), backups, LOGS, NOW).point.backup_id == "20261120T120025Z-0002"
    assert choose(BeforeGtid(f"{UUID}:26"), backups, LOGS, NOW).point.backup_id == "20261120T120025Z-0002"
    assert choose(AtGtids(f"{UUID}:1-25"), backups, LOGS, NOW).exact_backup
    assert choose(Latest(), backups, LOGS, NOW).files == LOGS[1:]
    assert choose(AtBackup(None), backups, (), NOW).point == backups[1]


@pytest.mark.parametrize(
    ("to", "error", "words"),
    [
        (AtTime(at(-1)), NotFound, "no backup is older"),
        (AtTime(at(41)), NotFound, "after the end of the archive"),
        (AtTime(NOW + timedelta(days=1)), PreflightError, "in the future"),
        (AtGtids(f"{UUID}:41"), NotFound, "neither in a backup nor in the archived binlogs"),
        (AtGtids(f"{UUID}:3"), NotFound, "every backup already contains"),
        (AtGtids("0-1-3"), PreflightError, "is not a GTID of mysql"),
        (AtBackup("20200101T000000Z-0000"), NotFound, "holds no backup 20200101T000000Z-0000"),
    ],
)
def test_what_cannot_be_reached_is_said(to: AtTime, error: type[ZsnapdbError], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        choose(to, (base(),), LOGS, NOW)
    if not isinstance(to, AtBackup):
        assert refused.value.about == (), "holders of tokens read the reason too"


def test_time_without_archive_has_a_public_reason() -> None:
    with pytest.raises(NotFound, match="no binlogs are archived") as refused:
        choose(AtTime(at(41)), (base(),), (), NOW)
    assert refused.value.about == ()


def test_a_time_before_the_old_servers_last_commit_is_not_sought_in_the_successors_file() -> None:
    """The successor's first file begins with transactions that the old server committed before that time."""
    taken_over = Log("b", "binlog.000007", OTHER, mysql(1, 15), mysql(16, 50), 100, 3600, at(16), at(50))
    chosen = choose(AtTime(at(17)), (base(),), (LOGS[0], taken_over), NOW)
    assert (chosen.files, chosen.boundary) == (LOGS[:1], LOGS[0])
    assert bounded(chosen, 1100, scan(1, 20)).gtids == mysql(1, 17)
    assert choose(AtTime(at(25)), (base(),), (LOGS[0], taken_over), NOW).boundary == taken_over


def test_a_time_behind_a_gap_is_not_reached() -> None:
    with pytest.raises(NotFound, match=r"the files between binlog\.000001 and number 3 were removed"):
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
        file = next(file for file in LOGS if file is chosen.files[-1])
        first = {1: 1, 2: 21, 3: 31}[file.number]
        scanned = scan(first, first + file.transactions - 1)
        start = 1100 if len(chosen.files) == 1 else 100
        boundary = bounded(chosen, start, scanned)
        assert boundary.gtids == mysql(1, last)
        assert boundary.following is None or boundary.following.gtid == f"{UUID}:{last + 1}"
        assert boundary.stop == max(start, 100 + 100 * (last - first + 1))
        steps = replays(chosen.point, chosen.files, 1100, boundary.stop, boundary.gtids, 1)
        replayed = sum((part.stop or 0) - part.start for step in steps for part in step.logs)
        assert replayed == 100 * (last - 10)
        assert not steps or steps[-1].gtids == str(mysql(1, last))


def test_time_that_the_clock_showed_twice_is_refused() -> None:
    chosen = choose(AtTime(at(15)), (base(),), LOGS, NOW)
    scanned = scan(1, 20)
    scanned[16] = Scanned(f"{UUID}:17", scanned[16].start, scanned[16].end, at(12))
    with pytest.raises(
        AmbiguousPointError, match=f"after {UUID}:14 .* and before {UUID}:18 .*; the 3 transaction"
    ) as no:
        bounded(chosen, 1100, scanned)
    assert f"`--to {UUID}:14` or `--to before-{UUID}:18`" in no.value.hint


def test_a_backup_that_was_begun_before_and_snapshotted_after_the_time_is_past_it() -> None:
    newest = newest_in_backup(LOGS[0], 1100, scan(1, 20), LOGS)
    assert newest == at(10)
    assert is_past(AtTime(at(9)), newest, at(8))
    assert not is_past(AtTime(at(10)), newest, at(11))
    assert not is_past(Latest(), newest, at(11))


def test_backup_that_ends_with_a_set_time_is_as_old_as_its_snapshot() -> None:
    loaded = [replace(one, committed=at(10**8), is_exact=False) for one in scan(1, 20)]
    newest = newest_in_backup(LOGS[0], 1100, loaded, LOGS, at(12))
    assert newest == at(12)
    assert not is_past(AtTime(at(15)), newest, at(12))


def test_the_binlogs_before_that_of_a_backup_tell_its_last_transaction() -> None:
    first = LOGS[1]
    assert newest_in_backup(first, 0, (), LOGS) == commit_time(LOGS[0].last_commit or 0)
    assert newest_in_backup(first, 0, (), LOGS[1:]) is None
    assert newest_in_backup(replace(first, gap="binlogs are missing"), 0, (), LOGS) is None
    assert is_past(AtTime(at(9)), None, at(10)), "it may contain everything until its snapshot"
    assert not is_past(AtTime(at(10)), None, at(9))


def test_where_the_replay_starts_is_found_by_gtid_in_another_servers_binlog() -> None:
    elsewhere = follow(base(gtids=5, file="other.000009"), LOGS)
    assert (elsewhere.is_start_exact, start_in(elsewhere, scan(1, 20))) == (False, 600)
    assert start_in(follow(base(), LOGS), ()) == 1100


def test_mariadb_positions_are_followed_by_their_heads() -> None:
    def head(number: int) -> GtidPosition:
        return GtidPosition({0: (1, number)})

    logs = tuple(
        Log("a", f"b.{n:06d}", "server_id 1", head(10 * n), head(10 * n + 10), 100, 1100, at(10 * n), at(10 * n + 10))
        for n in (1, 2)
    )
    backup = point("20261120T120015Z-0001", Flavour.MARIADB, "server_id 1", head(15), "b.000001", 600)
    chosen = choose(AtGtids("0-1-24"), (backup,), logs, NOW)
    assert chosen.files == logs
    scanned = [Scanned(f"0-1-{n}", 100 * (n - 20), 100 * (n - 19), at(n)) for n in range(21, 31)]
    boundary = boundary_in(chosen, 100, scanned)
    assert (boundary.gtids, boundary.stop) == (head(24), 500)
    assert choose(BeforeGtid("0-1-16"), (backup,), logs, NOW).files == logs[:1]


def test_a_gtid_of_mariadb_whose_number_another_server_gave_in_this_history_is_not_there() -> None:
    """The position 0-1-20 counts as reached by 0-2-20, and by a backup that ends there."""
    head = GtidPosition({0: (2, 30)})
    log = Log("a", "b.000001", "server_id 2", GtidPosition({0: (2, 10)}), head, 100, 2100, at(10), at(30))
    backup = point("20261120T120015Z-0001", Flavour.MARIADB, "server_id 2", GtidPosition({0: (2, 15)}), "b.000001", 600)
    scanned = [Scanned(f"0-2-{n}", 100 * (n - 10), 100 * (n - 9), at(n)) for n in range(11, 31)]
    for target in (AtGtids("0-1-20"), BeforeGtid("0-1-20")):
        with pytest.raises(NotFound, match=r"0-1-20 is not in b\.000001"):
            boundary_in(choose(target, (backup,), (log,), NOW), 600, scanned)
    assert boundary_in(choose(BeforeGtid("0-2-20"), (backup,), (log,), NOW), 600, scanned).stop == 1000
    assert choose(AtGtids("0-2-15"), (backup,), (log,), NOW).exact_backup
    with pytest.raises(NotFound, match="every backup already contains 0-1-15"):
        choose(AtGtids("0-1-15"), (backup,), (log,), NOW)


def test_a_transaction_that_is_the_last_of_a_backup_is_that_backup() -> None:
    """MySQL's set of a backup does not say which of its transactions was the last one."""
    known = replace(base(), last_gtid=f"{UUID}:10")
    assert choose(AtGtids(f"{UUID}:10"), (known,), LOGS, NOW).exact_backup
    assert choose(AtGtids(f"{UUID}:3-7:10"), (known,), LOGS, NOW).exact_backup
    for other, backup in ((f"{UUID}:9", known), (f"{UUID}:10", base())):
        with pytest.raises(NotFound, match="every backup already contains"):
            choose(AtGtids(other), (backup,), LOGS, NOW)


def test_of_mariadb_the_last_transaction_of_a_backup_decides_and_not_its_other_domains() -> None:
    head = GtidPosition({0: (1, 15), 1: (1, 7)})
    backup = point("20261120T120015Z-0001", Flavour.MARIADB, "server_id 1", head, "b.000001", 600)
    known = replace(backup, last_gtid="0-1-15")
    assert choose(AtGtids("0-1-15"), (known,), (), NOW).exact_backup
    for other in ("1-1-7", "0-2-15"):
        with pytest.raises(NotFound, match="every backup already contains"):
            choose(AtGtids(other), (known,), (), NOW)


def test_a_gtid_of_mariadb_is_found_behind_an_equal_number_of_another_server() -> None:
    """Two servers wrote in one domain, with gtid_strict_mode=OFF: the numbers of one come again from the other."""
    head = GtidPosition({0: (1, 20)})
    log = Log("a", "b.000001", "server_id 2", GtidPosition({0: (2, 10)}), head, 100, 2100, at(10), at(30))
    backup = point("20261120T120015Z-0001", Flavour.MARIADB, "server_id 2", GtidPosition({0: (2, 15)}), "b.000001", 600)
    numbers = [(server, number) for number in range(16, 21) for server in (2, 1)]
    scanned = [
        Scanned(f"0-{server}-{number}", 600 + 100 * place, 700 + 100 * place, at(20))
        for place, (server, number) in enumerate(numbers)
    ]
    boundary = boundary_in(choose(AtGtids("0-1-18"), (backup,), (log,), NOW), 600, scanned)
    assert (boundary.last, boundary.following) == (scanned[5], scanned[6])
    assert boundary.gtids == GtidPosition({0: (1, 18)})
