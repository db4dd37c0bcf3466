"""A program that holds a clone asks for resets by one word, and for nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

import pytest

from zsnapdb.base.errors import UsageError
from zsnapdb.jobs.clone.lifecycle import RequestLines
from zsnapdb.jobs.clone.reset_baseline import LogEnd


@pytest.fixture
def pipe() -> Iterator[tuple[RequestLines, IO[bytes]]]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as file:
        yield RequestLines(reading), file
    os.close(reading)


def test_lines_come_one_by_one_as_they_are_written_until_there_are_no_more(
    pipe: tuple[RequestLines, IO[bytes]],
) -> None:
    lines, file = pipe
    assert (lines.within(0), lines.has_ended) == (None, False)
    file.write(b"reset\nres")
    assert (lines.within(5), lines.within(0)) == (b"reset", None)
    file.write(b"et\n\nreset\n")
    assert [lines.within(5), lines.within(5)] == [b"reset", b""]
    file.close()
    assert (lines.within(5), lines.has_ended) == (b"reset", False)
    assert (lines.within(5), lines.has_ended) == (None, True)


def test_a_line_without_end_is_refused(pipe: tuple[RequestLines, IO[bytes]]) -> None:
    lines, file = pipe
    file.write(b"x" * 1001)
    with pytest.raises(UsageError, match="too long"):
        lines.within(5)


def test_the_end_of_a_binlog_is_read_as_it_is_recorded() -> None:
    end = LogEnd("binlog.000004", 157, "0" * 64)
    assert LogEnd.parse(str(end)) == end
    for text in ("", "binlog:1", f"../x.000001:4:{'0' * 64}", "binlog.000004:-1:", f"{end} ", "binlog.000004:157"):
        assert LogEnd.parse(text) is None
