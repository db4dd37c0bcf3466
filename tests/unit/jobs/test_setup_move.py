"""A move of files ends on the copies or on the old files, wherever it is interrupted."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.errors import CommandError, DamagedError, NotOursError, ServerError
from zsnapdb.jobs import setup_move, tree_copy
from zsnapdb.model import Flavour
from zsnapdb.planning.setup.facts import FoundFiles, FoundServer
from zsnapdb.planning.setup.move import ServerMove, planned_move
from zsnapdb.zfs import command, datasets
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import MountEntry


class Killed(BaseException):
    """Stands for kill -9: nothing is put right afterwards."""


class MovingHost:
    """Folders in place of datasets; a server that only starts where its option file and its files fit."""

    def __init__(self, root: Path) -> None:
        self.root, self.options = root, root / "options"
        self.datadir = root / "mysql"
        self.datadir.mkdir()
        self.options.mkdir()
        for name in ("ibdata1", "ib_logfile0", "mysql-bin.000001", "mysql-bin.state"):
            (self.datadir / name).write_text(name)
        (self.datadir / "mysql-bin.index").write_text("./mysql-bin.000001\n")
        self.mounted_at, self.runs_on, self.starts_on_zfs = "", str(self.datadir), True
        self.mark = str(self.datadir)
        self.count, self.kill_at = 0, -1

    def move(self) -> ServerMove:
        binlog = f"{self.datadir}/mysql-bin"
        files = FoundFiles("db.service", binlog=binlog, binlog_index=f"{binlog}.index", option_folder=str(self.options))
        server = FoundServer(1, "mysql", "/usr/sbin/mysqld", ("/s",), str(self.datadir), Flavour.MYSQL, "ext4")
        return planned_move(replace(server, files=files), files, "tank/mysql", (2, 3, 0))

    def reached(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed

    def run(self, argv: Sequence[str], **_: float) -> str:
        self.reached()
        words = list(argv)
        if words[:2] == ["zfs", "create"]:
            if not self.mounted_at:
                self.mounted_at = next(w for w in words if w.startswith("mountpoint=")).partition("=")[2]
            Path(self.mounted_at, *(["data"] if words[-1].endswith("data") else [])).mkdir()
        elif words[:2] == ["zfs", "set"]:
            os.rename(self.mounted_at, new := words[2].partition("=")[2])
            Path(self.mounted_at).mkdir()
            self.mounted_at = new
        elif words[0] == "mv":
            os.rename(*words[2:])
        elif words[:2] == ["systemctl", "stop"]:
            self.runs_on = ""
        elif words[:2] == ["systemctl", "start"]:
            self.start()
        self.reached()
        return ""

    def start(self) -> None:
        on_zfs = any(self.options.iterdir())
        place = self.datadir / "data" if on_zfs else self.datadir
        if not (place / "ibdata1").exists() or (on_zfs and not self.starts_on_zfs):
            raise CommandError("the server did not start")
        self.runs_on = str(place)

    def answered(self, move: ServerMove) -> None:
        if self.runs_on != move.datadir:
            raise ServerError(f"it uses {self.runs_on}")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MovingHost:
    fake = MovingHost(tmp_path)
    monkeypatch.setattr(command, "run", fake.run)
    monkeypatch.setattr(command, "run_when_free", fake.run)
    monkeypatch.setattr(
        datasets,
        "exists",
        lambda name: bool(fake.mounted_at) and Path(fake.mounted_at, *name.split("/")[2:]).exists(),
    )
    monkeypatch.setattr(setup_move, "journal", lambda: tmp_path / "state" / "move.json")
    monkeypatch.setattr(setup_move, "_wait_until_it_answers", fake.answered)

    def mounts() -> list[MountEntry]:
        paths = ((fake.mounted_at, "tank/mysql"), (f"{fake.mounted_at}/data", "tank/mysql/data"))
        return [MountEntry(path, "zfs", name) for path, name in paths]

    monkeypatch.setattr(setup_move, "mounted", mounts)
    monkeypatch.setattr(
        datasets,
        "properties_of",
        lambda names, keys: {name: {key: Property(fake.mark, "local") for key in keys} for name in names},
    )
    return fake


def check_moved(host: MovingHost) -> None:
    assert host.runs_on == f"{host.datadir}/data"
    files = {str(file.relative_to(host.datadir)) for file in host.datadir.rglob("*") if file.is_file()}
    assert files == {"data/ibdata1", "ib_logfile0", "mysql-bin.000001", "mysql-bin.index", "mysql-bin.state"}
    assert (host.datadir / "mysql-bin.index").read_text() == f"{host.datadir}/mysql-bin.000001\n"
    assert (host.root / "mysql.before-zfs" / "ibdata1").read_text() == "ibdata1"
    assert not (host.root / "mysql.on-zfs").exists(), "nothing is in the way of another move"
    assert setup_move.begun() is None


def test_a_move_ends_with_the_server_on_the_copies_and_the_old_files_kept(host: MovingHost) -> None:
    setup_move.execute(host.move())
    check_moved(host)


@pytest.mark.parametrize("at", range(1, 15))
def test_a_move_that_was_killed_goes_on_to_the_same_end(host: MovingHost, at: int) -> None:
    host.kill_at = at
    with pytest.raises(Killed):
        setup_move.execute(host.move())
    # The server may be started by hand, or by a reboot, and write.
    if (host.datadir / "ibdata1").exists() and not any(host.options.iterdir()):
        host.start()
        (host.datadir / "ibdata1").write_text("ibdata1")
    host.kill_at = -1
    left = setup_move.begun()
    assert left == host.move()
    setup_move.execute(left)
    check_moved(host)


def test_there_are_no_more_steps_to_be_killed_at(host: MovingHost) -> None:
    setup_move.execute(host.move())
    assert host.count == 14


def test_a_server_that_does_not_start_on_zfs_is_put_back_and_the_next_move_ends_well(host: MovingHost) -> None:
    host.starts_on_zfs = False
    with pytest.raises(ServerError, match="runs on its old files again"):
        setup_move.execute(host.move())
    assert host.runs_on == str(host.datadir)
    assert list(host.options.iterdir()) == []
    host.starts_on_zfs = True
    move = setup_move.begun()
    assert move is not None
    setup_move.execute(move)
    check_moved(host)


def test_a_server_that_cannot_be_put_back_either_is_told_after_why_it_did_not_start(
    host: MovingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: str, _target: str) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    host.starts_on_zfs = False
    move = host.move()
    answered = setup_move._wait_until_it_answers

    def then_stuck(move: ServerMove) -> None:
        monkeypatch.setattr(os, "rename", refused)
        answered(move)

    monkeypatch.setattr(host, "start", lambda: None)
    monkeypatch.setattr(setup_move, "_wait_until_it_answers", then_stuck)
    with pytest.raises(ServerError, match="did not start on ZFS: it uses") as caught:
        setup_move.execute(move)
    assert any("putting the server back" in note and "busy" in note for note in caught.value.__notes__)


def test_a_copy_that_fails_leaves_the_server_running_on_its_files(
    host: MovingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_move, "mounted", list)
    with pytest.raises(Exception, match="is not mounted at"):
        setup_move.execute(host.move())
    assert host.runs_on == str(host.datadir)


def test_in_datasets_of_others_nothing_is_removed(host: MovingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []
    monkeypatch.setattr(tree_copy, "keep_only", lambda folder, _names: removed.append(folder))
    host.mark = "/var/lib/another"
    with pytest.raises(NotOursError, match="tank/mysql is not ours"):
        setup_move.execute(host.move())
    assert (removed, host.runs_on) == ([], str(host.datadir))


def test_a_server_that_stays_stopped_is_told(host: MovingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise CommandError("the unit is masked")

    host.mark = "/var/lib/another"
    monkeypatch.setattr(host, "start", broken)
    with pytest.raises(NotOursError) as caught:
        setup_move.execute(host.move())
    assert any("the server is stopped" in note and "masked" in note for note in caught.value.__notes__)


def test_a_record_that_is_no_move_is_named(host: MovingHost) -> None:
    setup_move.journal().parent.mkdir()
    setup_move.journal().write_text('{"server": 7}')
    with pytest.raises(DamagedError, match=r"move\.json does not describe"):
        setup_move.begun()
