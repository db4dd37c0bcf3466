"""What is not used in files of tablespaces is overwritten, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from zsnapdb.mysql.schema.tablespace_overwrite import empty_doublewrite, empty_free_pages

PAGE = 16384


def _system_tablespace(path: Path, *, magic: int = 536853855, blocks: tuple[int, int] = (64, 128)) -> Path:
    content = bytearray(b"z" * (PAGE * 256))
    struct.pack_into(">III", content, 6 * PAGE - 200 + 10, magic, *blocks)
    path.write_bytes(content)
    return path


def test_only_the_doublewrite_buffer_is_overwritten(tmp_path: Path) -> None:
    file = _system_tablespace(tmp_path / "ibdata1")
    before = file.read_bytes()
    assert empty_doublewrite(file, PAGE)
    after = file.read_bytes()
    assert after[64 * PAGE : 192 * PAGE] == bytes(128 * PAGE)
    assert (after[: 64 * PAGE], after[192 * PAGE :]) == (before[: 64 * PAGE], before[192 * PAGE :])


def test_a_tablespace_without_a_doublewrite_buffer_stays_as_it_is(tmp_path: Path) -> None:
    file = _system_tablespace(tmp_path / "ibdata1", magic=0)
    before = file.read_bytes()
    assert empty_doublewrite(file, PAGE)
    assert file.read_bytes() == before


@pytest.mark.parametrize("blocks", [(64, 250), (3, 128), (64, 2**32 - 1)])
def test_a_buffer_that_cannot_be_there_is_not_touched(tmp_path: Path, blocks: tuple[int, int]) -> None:
    file = _system_tablespace(tmp_path / "ibdata1", blocks=blocks)
    before = file.read_bytes()
    assert not empty_doublewrite(file, PAGE)
    assert file.read_bytes() == before


def _tablespace(path: Path, free: set[int], *, pages: int = 192, limit: int = 128, flags: int = 0) -> Path:
    content = bytearray(b"z" * (PAGE * pages))
    content[:PAGE] = bytes(PAGE)
    struct.pack_into(">III", content, 38 + 8, pages, limit, flags)
    for extent in range(2):
        start = 38 + 112 + extent * 40
        bits = sum(1 << (2 * (page % 64)) for page in free if page // 64 == extent)
        struct.pack_into(">I", content, start + 20, 4)
        content[start + 24 : start + 40] = bits.to_bytes(16, "little")
    path.write_bytes(content)
    return path


def test_only_free_pages_are_overwritten(tmp_path: Path) -> None:
    free = {5, 63, 64, 100, 127}
    file = _tablespace(tmp_path / "mysql.ibd", free)
    before = file.read_bytes()
    assert empty_free_pages(file, PAGE)
    after = file.read_bytes()
    pages = {n for n in range(192) if after[n * PAGE : (n + 1) * PAGE] != before[n * PAGE : (n + 1) * PAGE]}
    assert pages == free
    assert all(after[n * PAGE : (n + 1) * PAGE] == bytes(PAGE) for n in free)


def test_a_file_that_is_no_tablespace_of_such_pages_is_not_touched(tmp_path: Path) -> None:
    compressed = _tablespace(tmp_path / "compressed.ibd", {5}, flags=0b1000)
    text = tmp_path / "text"
    text.write_bytes(b"x" * 100)
    for file in (compressed, text):
        before = file.read_bytes()
        assert not empty_free_pages(file, PAGE)
        assert file.read_bytes() == before
