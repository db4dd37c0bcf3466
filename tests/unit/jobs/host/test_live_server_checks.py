"""What may take production's place: facts of the mount table."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from zsnapdb.base.errors import ForeignInsideError, PreflightError
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.mysql.process import discovery
from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import MountEntry

PLACES = {"tank/mysql": "/var/lib/mysql"}
OWN = MountEntry("/var/lib/mysql", "zfs", "tank/mysql")


@pytest.mark.parametrize("is_bind", [False, True])
def test_a_dataset_with_a_second_mount_is_not_exchanged(monkeypatch: pytest.MonkeyPatch, *, is_bind: bool) -> None:
    jail = MountEntry("/srv/my jail", "zfs", "tank/mysql", is_bind)
    monkeypatch.setattr(mounts, "mounted", lambda: [OWN, jail])
    with pytest.raises(ForeignInsideError, match="also mounted at /srv/my jail") as refused:
        dataset_use_checks.refuse_second_mounts(PLACES)
    assert "umount '/srv/my jail'" in refused.value.hint


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [OWN],
        [OWN, OWN],
        # It was mounted elsewhere when it was backed up.
        [MountEntry("/srv/mysql", "zfs", "tank/mysql")],
        [OWN, MountEntry("/srv/other", "zfs", "tank/other"), MountEntry("/srv/x", "ext4", "tank/mysql")],
    ],
)
def test_a_dataset_with_one_place_is_exchanged(monkeypatch: pytest.MonkeyPatch, entries: list[MountEntry]) -> None:
    monkeypatch.setattr(mounts, "mounted", lambda: entries)
    dataset_use_checks.refuse_second_mounts(PLACES)


@contextmanager
def server_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with this working directory, which counts as the only server."""
    process = subprocess.Popen(["sleep", "60"], cwd=folder)
    monkeypatch.setattr(discovery, "server_processes", lambda: [SimpleNamespace(pid=process.pid)])
    monkeypatch.setattr(mounts, "mounted", list)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_no_restored_server_covers_a_running_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mysql/data").mkdir(parents=True)
    with server_in(tmp_path / "mysql/data", monkeypatch):
        with pytest.raises(PreflightError, match="a server runs there"):
            dataset_use_checks.refuse_covering([str(tmp_path / "mysql")], ())
        dataset_use_checks.refuse_covering([str(tmp_path / "other")], ())


def test_server_whose_folder_has_another_path_here_is_not_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of its folder is that of another folder, as for a server in a container."""
    (tmp_path / "mysql").mkdir()
    with server_in(tmp_path / "mysql", monkeypatch):
        monkeypatch.setattr("os.readlink", lambda _: str(tmp_path / "mysql"))
        (tmp_path / "mysql").rename(tmp_path / "moved")
        (tmp_path / "mysql").mkdir()
        dataset_use_checks.refuse_covering([str(tmp_path / "mysql")], ())


def test_mounts_of_others_are_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry("/var/lib/mysql/data", "zfs", "tank/other")])
    monkeypatch.setattr(discovery, "server_processes", list)
    with pytest.raises(PreflightError, match="tank/other is mounted at /var/lib/mysql/data"):
        dataset_use_checks.refuse_covering(["/var/lib/mysql"], {"tank/mysql"})
    dataset_use_checks.refuse_covering(["/var/lib/mysql"], {"tank/other"})
