"""Values of rows are printed as MySQL writes them, in one form for each column."""

from __future__ import annotations

from datetime import timedelta

import pytest

from zsnapdb.documents.comparison import plain, time_text


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (timedelta(seconds=-1), "-00:00:01"),
        (timedelta(hours=100, minutes=30), "100:30:00"),
        (timedelta(hours=838, minutes=59, seconds=59), "838:59:59"),
        (-timedelta(hours=1, microseconds=1500), "-01:00:00.001500"),
        (timedelta(0), "00:00:00"),
    ],
)
def test_a_time_is_written_as_mysql_does_and_not_in_days(value: timedelta, written: str) -> None:
    assert time_text(value) == written
    assert plain(value) == written


def test_bytes_have_one_form_whatever_they_contain() -> None:
    assert [plain(value) for value in (b"A", b"\xff", b"\x01", b"")] == ["0x41", "0xff", "0x01", "0x"]
