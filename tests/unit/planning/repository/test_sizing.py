"""The estimate grows with the server, keeps what the policy keeps, and counts no fewer requests than are sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.support.archived_server import Server
from tests.unit.support.command_line import zsnapdb
from tests.unit.support.world import made
from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.config.repository import KeepRules, StreamSettings
from zsnapdb.config.settings import BinlogSettings
from zsnapdb.jobs.backup import run as backup
from zsnapdb.jobs.repository.sizing import parse_daily, parse_keep, parse_line, parse_prices, size_workload
from zsnapdb.planning.binlog.archive_times import RoundTimer
from zsnapdb.planning.repository.sizing import (
    BACKUP_REQUESTS,
    DAY,
    GIB,
    LOOK_REQUESTS,
    MERGE_REQUESTS,
    MERGED,
    MIB,
    PRICES,
    ROUND_REQUESTS,
    Requests,
    SizingEstimate,
    Workload,
    count_chunks,
    kept_backups,
)
from zsnapdb.store.local import LocalStore

SMALL = Workload(10 * GIB, GIB, GIB)
KINDS = {"put": "put", "replace": "put", "list": "list", "folders": "list", "get": "get", "read_version": "get"}


def sized(load: Workload) -> SizingEstimate:
    return size_workload(load, tuple(PRICES.values()))


def figures(one: SizingEstimate) -> list[float]:
    return [
        *(one.full_seconds, one.increment_seconds, one.restore_seconds, one.objects, one.stored),
        *(one.requests.put, one.costs[0].month, one.costs[0].restore),
    ]


@pytest.mark.parametrize("pause", [7.5, 60.0])
def test_archived_bytes_are_stored_in_segments_and_again_in_rotated_files(pause: float) -> None:
    chunk = StreamSettings().chunk_size
    put = (
        sized(replace(SMALL, binlog=500 * GIB, pause=pause)).requests.put - sized(replace(SMALL, binlog=0)).requests.put
    )
    assert put >= 30 * 500 * GIB / chunk * (1 + ROUND_REQUESTS.put)


@settings(max_examples=20)
@given(st.integers(1, 4000), st.integers(0, 100), st.integers(0, 100), st.integers(1, 50))
def test_estimate_grows_with_each_quantity(size: int, change: int, binlog: int, more: int) -> None:
    load = Workload(size * GIB, change * GIB, binlog * GIB)
    least = figures(sized(load))
    for larger in (
        replace(load, size=load.size + more * GIB),
        replace(load, change=load.change + more * GIB),
        replace(load, binlog=load.binlog + more * GIB),
    ):
        assert all(a <= b for a, b in zip(least, figures(sized(larger)), strict=True))


def test_slow_line_decides_the_time_of_a_backup() -> None:
    fast, slow = (sized(replace(SMALL, line=line * MIB)) for line in (10_000.0, 10.0))
    assert slow.full_seconds == pytest.approx(10 * GIB * 0.43 / (10 * MIB))
    assert fast.full_seconds < slow.full_seconds / 10


@pytest.mark.parametrize(("last", "full", "increments"), [(7, 1, 6), (1, 1, 0)])
def test_short_chains_keep_what_the_rules_keep(last: int, full: int, increments: int) -> None:
    rules = tuple((name, {"last": last}.get(name, 0)) for name in KeepRules.model_fields if name != "minimum")
    kept = kept_backups((*rules, ("minimum", 1)), DAY, last * DAY)
    assert kept.full <= full + 1
    assert kept.increments >= increments
    assert kept.days <= 2 * last + 1


def test_chunks_of_a_stream_have_all_its_bytes() -> None:
    assert [count_chunks(size, lambda _: 10) for size in (0, 1, 10, 11, 100)] == [0, 1, 1, 2, 10]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to the store by their price."""
    seen: Counter[str] = Counter()
    for name, kind in KINDS.items():

        def counted(
            self: LocalStore,
            *words: object,
            _call: object = getattr(LocalStore, name),
            _kind: str = kind,
            **more: object,
        ) -> object:
            seen[_kind] += 1
            return _call(self, *words, **more)  # type: ignore[operator]

        monkeypatch.setattr(LocalStore, name, counted)
    return seen


def is_covered(asked: Counter[str], by: Requests) -> bool:
    return asked["put"] <= by.put and asked["list"] <= by.list and asked["get"] <= by.get


def test_backup_sends_no_more_requests_than_estimated(tmp_path: Path, asked: Counter[str]) -> None:
    with made(tmp_path) as world:
        backup.backup(world.instance, opener=world.open_source)
        asked.clear()
        backup.backup(world.instance, opener=world.open_source)
    assert asked["put"] > 5
    assert is_covered(asked, BACKUP_REQUESTS), asked


def test_archiver_sends_no_more_requests_than_estimated(tmp_path: Path, asked: Counter[str]) -> None:
    server = Server(tmp_path)
    archiver, rounds = server.archiver(), 2 * MERGED
    server.commit()
    archiver.look()
    asked.clear()
    for _ in range(rounds):
        server.commit()
        archiver.look()
    most = ROUND_REQUESTS.times(rounds) + MERGE_REQUESTS.times(rounds / MERGED) + LOOK_REQUESTS
    assert rounds < asked["put"]
    assert is_covered(asked, most), asked


def test_archiver_starts_as_many_rounds_as_estimated() -> None:
    assert Workload(0, 0, 0).pause == RoundTimer(BinlogSettings().interval).pause


@pytest.mark.parametrize("text", ["20GiB", "20/day", "GiB/day", "1GiB/month", "-1GiB/day"])
def test_rate_without_its_units_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_daily(text)


def test_words_of_quantities_are_read() -> None:
    assert (parse_daily("1GiB/h"), parse_daily("7GiB/week")) == (24 * GIB, GIB)
    assert parse_line("1MiB/s") == parse_line("1MiB") == MIB
    assert parse_keep("daily=30,within=2d").daily == 30
    for wrong in ("dayly=1", "daily=many", "", "daily=0"):
        with pytest.raises(UsageError):
            parse_keep(wrong)


def test_own_price_list_is_read(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    texts = 'name = "ours"\ndate = "2026-11-01"\nsource = "contract"\ncurrency = "EUR"\n'
    file.write_text(
        texts + "gib_month = 0.01\nput_thousand = 0\nlist_thousand = 0\nget_thousand = 0\ntraffic_gib = 0\n"
    )
    (price,) = parse_prices(str(file))
    assert (price.currency, price.gib_month) == ("EUR", 0.01)
    file.write_text(texts)
    with pytest.raises(ConfigError, match="keys"):
        parse_prices(str(file))
    with pytest.raises(UsageError, match="not a price list"):
        parse_prices("elsewhere")


def test_advise_with_a_size_is_sizing() -> None:
    words = ("--size", "1TiB", "--change", "20GiB/day")
    new, old = zsnapdb("sizing", *words), zsnapdb("advise", *words)
    assert new.returncode == old.returncode == 0
    assert new.stdout == old.stdout
    assert "`zsnapdb sizing --size`" in old.stderr
