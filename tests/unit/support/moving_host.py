"""A host on which a server's files are moved: folders in place of datasets, and a server that can be killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.base import files
from zsnapdb.base.domain_types import Flavour, Snapshot
from zsnapdb.base.errors import CommandError, ServerError
from zsnapdb.jobs.setup import move as setup_move
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.steps.move_state import MovedServer
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process.service import ServingProcess
from zsnapdb.mysql.session import Session
from zsnapdb.planning.setup.facts import FoundFiles, FoundServer
from zsnapdb.planning.setup.move import ServedPlace, ServerMove, planned_move
from zsnapdb.zfs import command, datasets, destruction, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import MountEntry
from zsnapdb.zfs.snapshots import PendingSnapshots

NAMES = ("tank/mysql", "tank/mysql/data")


class Killed(BaseException):
    """A simulated kill -9: nothing is cleaned up."""


class MovingHost:
    """Folders in place of datasets, and a server that starts and writes where its option file and its files fit."""

    def __init__(self, root: Path) -> None:
        self.root, self.options = root, root / "options"
        self.datadir = root / "mysql"
        self.datadir.mkdir()
        self.options.mkdir()
        for name in ("ibdata1", "ib_logfile0", "mysql-bin.000001", "mysql-bin.state"):
            (self.datadir / name).write_text(name)
        (self.datadir / "mysql-bin.index").write_text("./mysql-bin.000001\n")
        self.mounted_at, self.created = "", list[str]()
        self.runs_on, self.rows = "", 0
        self.at_start: Callable[[str], None] = lambda place: None
        self.at_stop: Callable[[], None] = lambda: None
        self.mark, self.free = str(self.datadir), 1 << 40
        self.snapshots: dict[str, dict[str, bytes]] = {}
        self.count, self.kill_at = 0, -1
        self.commands: list[str] = []
        self.later = ""
        self.start()

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
        self.commands.append(" ".join(words))
        if words[:2] == ["zfs", "create"]:
            if not self.created:
                self.mounted_at = next(w for w in words if w.startswith("mountpoint=")).partition("=")[2]
            Path(self.mounted_at, *(["data"] if words[-1].endswith("data") else [])).mkdir()
            self.created.append(words[-1])
        elif words[:2] == ["zfs", "set"]:
            os.rename(self.mounted_at, new := words[2].partition("=")[2])
            Path(self.mounted_at).mkdir()
            self.mounted_at = new
        elif words[:2] == ["systemctl", "stop"]:
            self.runs_on = ""
            self.at_stop()
        elif words[:2] == ["systemctl", "start"]:
            self.start()
        self.reached()
        return ""

    def start(self) -> None:
        """Start the server, as systemd does after a reboot too, and commit a row of a client."""
        if self.runs_on:
            return
        on_zfs = any("datadir" in file.read_text() for file in self.options.iterdir())
        place = self.datadir / "data" if on_zfs else self.datadir
        if not (place / "ibdata1").exists():
            raise CommandError("the server did not start")
        self.at_start(str(place))
        self.runs_on = str(place)
        self.write()

    def options_of_server(self) -> str:
        """Return the output of `mysqld --print-defaults`: the option files in order, then `later`."""
        files = [file.read_text() for file in self.options.iterdir()]
        lines = [line for text in files for line in text.split("\n") if " = " in line]
        return " ".join([*(f"--{line.replace(' = ', '=')}" for line in lines), self.later])

    def write(self) -> None:
        self.rows += 1
        Path(self.runs_on, "ibdata1").write_text(f"row {self.rows}")

    def served(self) -> str:
        return Path(self.runs_on, "ibdata1").read_text()

    def running(self, move: ServerMove) -> MovedServer:
        if not self.runs_on:
            return MovedServer(ServedPlace.NOWHERE, state="failed")
        places = {move.datadir: ServedPlace.NEW, move.server.datadir: ServedPlace.OLD}
        return MovedServer(places.get(self.runs_on, ServedPlace.OTHER), 7, self.runs_on, True, "active")

    def content(self, dataset: str) -> dict[str, bytes]:
        """Return the files that a snapshot of the dataset would have."""
        top = Path(self.mounted_at, *(["data"] if dataset.endswith("data") else []))
        files = {str(file.relative_to(top)): file for file in top.rglob("*") if file.is_file()}
        is_data = dataset.endswith("data")
        return {name: file.read_bytes() for name, file in files.items() if is_data or not name.startswith("data/")}

    def take(self, names: Sequence[str], _properties: object) -> _Taken:
        return _Taken(self, names)

    def properties(self, dataset: str, keys: Sequence[str]) -> dict[str, Property]:
        (key,) = keys
        if key == "mountpoint":
            return {key: Property(self.mounted_at, "local")}
        before = self.snapshots[f"{dataset}@{key.partition('@')[2]}"]
        return {key: Property("0" if before == self.content(dataset) else "4096", "-")}

    def destroy(self, name: str, *_: object) -> None:
        self.reached()
        del self.snapshots[name]
        self.reached()


class _Taken:
    def __init__(self, host: MovingHost, names: Sequence[str]) -> None:
        self.host, self.names = host, names

    def start(self) -> None:
        self.host.reached()
        self.host.snapshots.update({name: self.host.content(name.partition("@")[0]) for name in self.names})

    def finish(self) -> None:
        self.host.reached()


def _described(name: str) -> Snapshot:
    dataset, _, short = name.partition("@")
    return Snapshot(dataset=dataset, name=short, guid=guid(name), createtxg=1)


def guid(name: str) -> int:
    return hash(name) & (1 << 60) - 1


def moving_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MovingHost:
    """Return a host whose commands, datasets and snapshots are simulated during the test."""
    fake = MovingHost(tmp_path)
    monkeypatch.setattr(command, "run", fake.run)
    monkeypatch.setattr(command, "run_when_free", fake.run)
    monkeypatch.setattr(datasets, "exists", lambda name: name in fake.created)
    monkeypatch.setattr(datasets, "guid", guid)
    monkeypatch.setattr(datasets, "available", lambda name: fake.free)
    monkeypatch.setattr(datasets, "properties", fake.properties)
    monkeypatch.setattr(
        datasets,
        "properties_of",
        lambda names, keys: {name: {key: Property(fake.mark, "local") for key in keys} for name in names},
    )
    monkeypatch.setattr(PendingSnapshots, "of", fake.take)
    monkeypatch.setattr(snapshots, "describe", lambda names: [_described(name) for name in names])
    monkeypatch.setattr(
        snapshots, "by_guid", lambda name: {guid(s): s for s in fake.snapshots if s.startswith(f"{name}@")}
    )
    monkeypatch.setattr(snapshots, "names_of", lambda names: list(fake.snapshots))
    monkeypatch.setattr(destruction, "destroy_snapshot", fake.destroy)
    monkeypatch.setattr(move_state, "journal", lambda: tmp_path / "state" / "move.json")
    monkeypatch.setattr(move_state, "running_server", fake.running)

    def refused(*_: object) -> None:
        raise ServerError("Access denied for user 'root'@'localhost'")

    monkeypatch.setattr(Session, "open", refused)
    monkeypatch.setattr(setup_move, "serving", lambda datadir: ServingProcess(7, ("/usr/sbin/mysqld", "--user=mysql")))
    monkeypatch.setattr(process_managers, "run", lambda words, timeout: fake.options_of_server())

    def mounts() -> list[MountEntry]:
        paths = (fake.mounted_at, f"{fake.mounted_at}/data")
        return [MountEntry(path, "zfs", name) for path, name in zip(paths, NAMES, strict=True) if name in fake.created]

    monkeypatch.setattr(move_state, "mounted", mounts)
    synced = files.sync_folder

    def sync_folder(folder: Path) -> None:
        fake.reached()
        synced(folder)
        fake.reached()

    monkeypatch.setattr(files, "sync_folder", sync_folder)
    return fake
