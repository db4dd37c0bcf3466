"""What zstd saves is known from blocks that lie evenly over the files of a volume."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from zsnapdb.jobs.backup.plan import zstd_effect

MIB = 1 << 20


def noise(size: int) -> bytes:
    return random.Random(1).randbytes(size)


@pytest.mark.parametrize(("noisy", "least", "most"), [(8, 0.99, 1.01), (4, 0.45, 0.55), (2, 0.2, 0.3), (0, 0.0, 0.01)])
def test_the_sample_has_each_file_by_its_size(tmp_path: Path, noisy: int, least: float, most: float) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "a.ibd").write_bytes(noise(noisy * MIB))
    (tmp_path / "b.ibd").write_bytes(b"the same text " * ((8 - noisy) * MIB // 14))
    seen = zstd_effect([tmp_path], 1)
    assert seen is not None
    assert least <= seen.ratio <= most, seen
    assert seen.seconds is not None
    assert 0 < seen.seconds < 600


def test_holes_and_zeros_are_not_counted_as_a_stream_has_none(tmp_path: Path) -> None:
    with open(tmp_path / "undo", "wb") as file:
        file.write(noise(MIB))
        file.truncate(64 * MIB)
    seen = zstd_effect([tmp_path], 1)
    assert seen is not None
    assert seen.ratio > 0.95


def test_no_link_is_followed_and_no_pipe_is_opened(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(noise(MIB))
    (inside / "file").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    assert zstd_effect([inside], 1) is None


def test_a_volume_that_is_empty_or_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert zstd_effect([tmp_path], 1) is None
    assert zstd_effect([tmp_path / "gone"], 1) is None
    assert zstd_effect([], 1) is None
