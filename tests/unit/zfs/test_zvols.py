"""A device node counts only if the device itself says that it is of the dataset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zsnapdb.base.errors import ConsistencyError, PreflightError
from zsnapdb.zfs import zvols


def test_a_link_to_the_device_of_another_volume_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zvols, "dataset_behind", lambda path: "tank/other")
    with pytest.raises(ConsistencyError, match="the device of tank/other"):
        zvols.wait_for_device("tank/mine", 0)


def test_a_link_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [None, "tank/other", "tank/mine"]
    monkeypatch.setattr(zvols, "dataset_behind", lambda path: answers.pop(0))
    assert zvols.wait_for_device("tank/mine", 10) == Path("/dev/zvol/tank/mine")


def test_what_is_no_device_of_a_volume_is_of_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    for name in ("file", "fifo", "nothing", "."):
        assert zvols.dataset_behind(tmp_path / name) is None
    assert zvols.dataset_behind(Path("/dev/null")) is None


def test_a_file_system_is_not_a_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["tank/a", key, "filesystem" if key == "type" else "-", "-"] for key in ("type", "volsize", "volblocksize")]
    rows += [["tank/a", key, "-", "-"] for key in ("refreservation", "used", "volmode", "origin")]
    monkeypatch.setattr("zsnapdb.zfs.datasets.property_rows", lambda argv, columns: rows)
    with pytest.raises(PreflightError, match="not a volume"):
        zvols.describe(["tank/a"])
