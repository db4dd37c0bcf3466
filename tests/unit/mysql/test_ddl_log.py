"""A DDL statement that crash recovery would finish is seen in MariaDB's DDL log."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.mysql.process.written_paths import FILE, statements_half_done

HEADER = bytes((254, 254, 11, 2)) + (4096).to_bytes(2, "little") + (56).to_bytes(2, "little") + b"\0"


def log(folder: Path, *kinds: int, header: bytes = HEADER) -> Path:
    blocks = b"".join(bytes([kind]).ljust(4096, b"\0") for kind in kinds)
    (folder / FILE).write_bytes(header.ljust(4096, b"\0") + blocks if kinds else header)
    return folder


@pytest.mark.parametrize(("kinds", "count"), [((), 0), ((3, 3, 2), 0), ((2, 2, 1), 1), ((1, 3, 1), 2), ((0,), 0)])
def test_entries_to_be_executed_are_counted(tmp_path: Path, kinds: tuple[int, ...], count: int) -> None:
    assert statements_half_done(log(tmp_path, *kinds)) == count


def test_a_log_that_is_elsewhere_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="does not exist"):
        statements_half_done(tmp_path)


def test_an_empty_log_means_none(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert statements_half_done(tmp_path) == 0


def test_a_log_of_another_form_is_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="not the DDL log"):
        statements_half_done(log(tmp_path, 1, header=b"other" + HEADER[5:]))
