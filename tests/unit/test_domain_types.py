"""A backup's id is its time; a position is described within a property's length."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position, backup_time, is_backup_id, new_backup_id
from zsnapdb.base.gtid import GtidSet


def test_backup_ids_sort_by_time_and_read_back() -> None:
    early = new_backup_id(datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC), 0xF7F3A)
    assert early == "20261120T101112Z-7f3a"
    assert early < new_backup_id(datetime(2026, 11, 20, 10, 11, 13, tzinfo=UTC), 0)
    assert backup_time(early) == datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)
    assert is_backup_id(early)
    assert not is_backup_id("20261120T101112Z-7F3A")
    assert not is_backup_id("daily-1")


SOURCES = ",".join(f"{n:08x}-0000-0000-0000-000000000000:1-{n + 9}" for n in range(200))


@pytest.mark.parametrize("limit", [200, 4096])
def test_a_position_fits_a_property_and_says_when_it_is_only_a_digest(limit: int) -> None:
    position = Position(Flavour.MYSQL, BinlogCoordinates("binlog.000007", 4711), GtidSet.parse(SOURCES), "x")
    assert len(position.describe()) > 4096
    short = position.short(limit)
    assert len(short) <= limit
    assert short.startswith("binlog.000007:4711 gtids-sha256:")
    assert (
        replace(position, gtids=GtidSet.parse(SOURCES.split(",")[0])).short(limit)
        == f"binlog.000007:4711 {SOURCES.split(',')[0]}"
    )
