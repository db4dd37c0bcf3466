"""The doublewrite buffer of a system tablespace is found where its header says, and nowhere else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from zsnapdb.mysql.schema.tablespace_overwrite import doublewrite_pages
from zsnapdb.planning.trial.drill import PageRange, without


def system_file(folder: Path, page_size: int, magic: int) -> Path:
    content = bytearray(8 * page_size)
    struct.pack_into(">III", content, 6 * page_size - 200 + 10, magic, 64, 1000)
    (folder / "ibdata1").write_bytes(content)
    return folder / "ibdata1"


@pytest.mark.parametrize(("page_size", "extent"), [(4096, 256), (16384, 64), (65536, 64)])
def test_the_two_blocks_of_the_buffer_are_as_long_as_an_extent(tmp_path: Path, page_size: int, extent: int) -> None:
    file = system_file(tmp_path, page_size, 536853855)
    assert doublewrite_pages(file, page_size) == (range(64, 64 + extent), range(1000, 1000 + extent))


def test_a_tablespace_without_the_buffer_has_none(tmp_path: Path) -> None:
    assert doublewrite_pages(system_file(tmp_path, 16384, 0), 16384) == ()
    (tmp_path / "short").write_bytes(b"x")
    assert doublewrite_pages(tmp_path / "short", 16384) == ()


@pytest.mark.parametrize(
    ("part", "rest"),
    [
        ((0, None), [(0, 63), (192, None)]),
        ((0, 63), [(0, 63)]),
        ((0, 64), [(0, 63)]),
        ((70, 190), []),
        ((70, 200), [(192, 200)]),
        ((100, None), [(192, None)]),
        ((300, 400), [(300, 400)]),
    ],
)
def test_of_pages_to_be_checked_those_of_the_buffer_are_left_out(
    part: tuple[int, int | None], rest: list[tuple[int, int | None]]
) -> None:
    found = without(PageRange("f", *part), (range(128, 192), range(64, 128)))
    assert [(piece.first, piece.last) for piece in found] == rest
