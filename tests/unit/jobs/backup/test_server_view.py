"""A server whose folders are others than those at the same paths of this host is found by device and inode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.host.dataset_use_checks import other_view
from zsnapdb.planning.backup.fitness import Cover, OtherView, Severity, judge
from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import MountEntry

PROGRAM = "/usr/sbin/mysqld"


class Host:
    """A process list in a folder, and folders that servers have."""

    def __init__(self, top: Path) -> None:
        self.top, self.proc = top, top / "proc"
        self.proc.mkdir()
        self.datadir = top / "var" / "mysql"
        self.datadir.mkdir(parents=True)

    def server(self, pid: int, root: Path, *, program: str = PROGRAM) -> Path:
        """Add a server that has the data directory below this root, and return that folder."""
        theirs = root / str(self.datadir).lstrip("/")
        theirs.mkdir(parents=True, exist_ok=True)
        process = self.proc / str(pid)
        process.mkdir()
        for name, target in (("exe", program), ("root", str(root)), ("cwd", str(theirs))):
            (process / name).symlink_to(target)
        return theirs

    def view(self, peer: int | None, **more: str) -> OtherView | None:
        return other_view({"datadir": str(self.datadir), **more}, peer, self.proc)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("peer", [7, None])
def test_a_server_with_the_folders_of_this_host_has_no_other_view(host: Host, peer: int | None) -> None:
    host.server(7, Path("/"))
    assert host.view(peer, hostname=os.uname().nodename) is None


@pytest.mark.parametrize("peer", [7, None, 8])
@pytest.mark.parametrize("is_here_too", [True, False])
def test_another_folder_at_the_same_path_is_named(host: Host, peer: int | None, *, is_here_too: bool) -> None:
    # Process 8 passes the connection on, as a proxy does: it is no server.
    host.server(7, host.top / "container")
    host.server(8, Path("/"), program="/usr/bin/proxy")
    if not is_here_too:
        host.datadir.rmdir()
    assert host.view(peer) == OtherView("datadir", str(host.datadir), 7, "")


def test_of_two_servers_with_one_path_the_host_name_tells_which_answers(host: Host) -> None:
    host.server(5, Path("/"))
    host.server(7, host.top / "container")
    assert host.view(None, hostname=os.uname().nodename) is None
    found = host.view(None, hostname="3f1c9a")
    assert found is not None
    assert found.pid == 7
    assert host.view(5, hostname="3f1c9a") is None


def test_every_folder_of_the_server_counts(host: Host) -> None:
    (host.top / "logs").mkdir()
    host.server(7, host.top / "container").rmdir()
    (host.proc / "7" / "cwd").unlink()
    (host.proc / "7" / "cwd").symlink_to(host.datadir)
    (host.top / "container" / str(host.top / "logs").lstrip("/")).mkdir(parents=True)
    found = host.view(7, log_bin_basename=f"{host.top}/logs/binlog", innodb_undo_directory="./")
    assert found == OtherView("log_bin_basename", f"{host.top}/logs", 7, "")


def test_a_link_of_this_host_to_the_folder_makes_the_views_one(host: Host) -> None:
    theirs = host.server(7, host.top / "container")
    host.datadir.rmdir()
    host.datadir.symlink_to(theirs)
    assert host.view(7) is None


@pytest.mark.parametrize("peer", [7, None])
@pytest.mark.parametrize("has_folder", [True, False])
@pytest.mark.parametrize("namespace", ["mnt:[1]", "mnt:[2]"])
def test_mount_over_the_folder_of_the_server_is_named(
    host: Host, monkeypatch: pytest.MonkeyPatch, peer: int | None, namespace: str, *, has_folder: bool
) -> None:
    host.server(7, Path("/"))
    for process, space in (("7", namespace), ("self", "mnt:[1]")):
        (host.proc / process / "ns").mkdir(parents=True)
        (host.proc / process / "ns/mnt").symlink_to(space)
    below = os.stat(host.datadir)
    entered, point = (below.st_dev, below.st_ino), str(host.datadir.parent)
    device = f"{os.major(below.st_dev)}:{os.minor(below.st_dev)}"
    entries = [MountEntry(point, "zfs", "tank/db", device=device), MountEntry(point, "zfs", "copy/db", device="0:0")]
    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry("/", "ext4", "/dev/sda", device="0:1"), *entries])
    seen = {False: None, True: (0, 1)}[has_folder]

    def identity(folder: Path) -> tuple[int, int] | None:
        return entered if folder == host.proc / "7/cwd" else seen

    monkeypatch.setattr(dataset_use_checks, "_identity", identity)
    view = host.view(peer)
    if namespace != "mnt:[1]":
        assert (view and view.cover) is None
        return
    assert view == OtherView("datadir", str(host.datadir), 7, "", Cover("copy/db", "tank/db", point))
    finding = judge(view)
    assert f"on tank/db, but copy/db was mounted over it at {point}" in finding.detail
    assert "container" not in finding.detail
    assert f"`umount {point}`" in finding.hint


def test_the_objection_names_the_process_and_the_place_on_this_host() -> None:
    finding = judge(OtherView("datadir", "/var/lib/mysql", 812, "/srv/db"))
    assert finding.severity is Severity.UNFIT
    assert "process 812" in finding.detail
    assert "this host has that folder at /srv/db" in finding.detail
    assert finding.hint.startswith("make /var/lib/mysql a symbolic link of this host to /srv/db")
    assert "a dataset that this host mounts" in judge(OtherView("datadir", "/var/lib/mysql", 812, "")).hint
