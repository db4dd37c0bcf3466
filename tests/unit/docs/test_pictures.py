"""The pictures in docs are those that `python -m tools.pictures` makes of the pages, and small."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from tools import pictures

REPOSITORY = Path(__file__).resolve().parents[3]


def size_of(file: Path) -> tuple[int, int]:
    """Return width and height of a PNG (RFC 2083, section 4.1.1)."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n", file
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def is_blank(file: Path) -> bool:
    """Whether the picture has hardly any content: what is one colour compresses to nothing."""
    whole, packed, place = file.read_bytes(), b"", 8
    while place < len(whole):
        length, kind = struct.unpack(">I4s", whole[place : place + 8])
        packed += whole[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += length + 12
    return len(packed) < len(zlib.decompress(packed)) / 500


def test_every_picture_is_made_shown_and_small() -> None:
    made = {f"{one.name}.png": one for one in pictures.PICTURES}
    there = {file.name: file for file in pictures.IMAGES.iterdir()}
    assert set(there) == set(made)
    docs = "".join(file.read_text() for file in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")))
    for name, file in there.items():
        assert f"img/{name})" in docs, name
        assert file.stat().st_size <= pictures.MOST_BYTES
        assert size_of(file) == (made[name].width, made[name].height)


@pytest.mark.skipif(pictures.chromium() is None, reason="needs Chromium: apt-get install chromium fonts-dejavu")
def test_the_pages_can_be_pictured(tmp_path: Path) -> None:
    for file, one in zip(pictures.make(tmp_path), pictures.PICTURES, strict=True):
        assert size_of(file) == (one.width, one.height)
        assert not is_blank(file)
