"""Servers under one instance name: a silent server counts as replaced, and a wrong clock makes no server silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from zsnapdb.planning.repository.backup_writers import writers

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Volume:
    """The only volume of a full backup."""

    guid: int
    role: str = "data"
    dataset: str = "tank/x"
    from_guid: int | None = None
    send_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """A full backup of a server, made so many days ago by its id."""

    writer: str
    days: int

    @property
    def backup_id(self) -> str:
        return f"{NOW - timedelta(days=self.days):%Y%m%dT%H%M%SZ}-{ord(self.writer):04x}"

    @property
    def volumes(self) -> tuple[Volume, ...]:
        return (Volume(1000 * ord(self.writer) + self.days),)


@pytest.mark.parametrize(
    ("days_of_first", "days_of_next", "count"),
    [
        ((40, 30), (20, 1), 1),
        ((40, 3), (2, 1), 2),
        ((4, 3, 30), (2, 1), 2),
        ((70, 60, 90), (20, 1), 1),
    ],
)
def test_silent_server_counts_as_replaced(
    days_of_first: tuple[int, ...], days_of_next: tuple[int, ...], count: int
) -> None:
    """The third history ends with a backup whose clock was behind: that server wrote three days ago."""
    stored = [*(Written("a", days) for days in days_of_first), *(Written("b", days) for days in days_of_next)]
    assert len(writers(stored, NOW)) == count
