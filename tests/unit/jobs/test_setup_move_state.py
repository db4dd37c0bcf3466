"""Where a server runs is what the kernel says of its process, and which files are older is what ZFS says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.support.moving_host import NAMES, MovingHost, moving_host
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.steps.move_state import MoveRecord, observe
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess
from zsnapdb.planning.setup.move import CopiesState, MovePhase, OldState, ServedPlace
from zsnapdb.zfs import command, mounts
from zsnapdb.zfs.mounts import MountEntry

RUNNING_SERVER = move_state.running_server


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MovingHost:
    return moving_host(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("folder", "is_mounted", "unit", "place"),
    [
        ("mysql/data", True, "db.service", ServedPlace.NEW),
        ("mysql/data", True, "by-hand.service", ServedPlace.NEW),
        ("mysql/data", False, "db.service", ServedPlace.OTHER),
        ("mysql", True, "db.service", ServedPlace.OLD),
        ("elsewhere", True, "db.service", ServedPlace.OTHER),
        ("elsewhere", True, "another.service", ServedPlace.NOWHERE),
    ],
)
def test_a_server_runs_where_the_kernel_has_its_process(
    host: MovingHost, monkeypatch: pytest.MonkeyPatch, folder: str, is_mounted: bool, unit: str, place: ServedPlace
) -> None:
    at = host.root / folder
    at.mkdir(parents=True, exist_ok=True)
    (host.datadir / "data").mkdir(exist_ok=True)
    monkeypatch.chdir(at)
    process = DiscoveredProcess(os.getpid(), "mysql", "/usr/sbin/mysqld", ("/s",), str(at))
    monkeypatch.setattr(discovery, "server_processes", lambda: [process])
    monkeypatch.setattr(discovery, "service_of", lambda pid: unit)
    monkeypatch.setattr(command, "run", lambda words, timeout: "MainPID=0\nActiveState=active\n")
    number = (host.datadir / "data").stat().st_dev
    entry = MountEntry(f"{host.datadir}/data", "zfs", NAMES[1], device=f"{os.major(number)}:{os.minor(number)}")
    monkeypatch.setattr(mounts, "mounted", lambda: [entry] if is_mounted and folder == "mysql/data" else [])
    seen = RUNNING_SERVER(host.move())
    assert seen.place is place
    assert bool(seen.pid) == (place is not ServedPlace.NOWHERE)


def test_a_process_that_is_about_to_become_the_server_runs_elsewhere(
    host: MovingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "server_processes", list)
    monkeypatch.setattr(command, "run", lambda words, timeout: f"MainPID={os.getpid()}\nActiveState=activating\n")
    seen = RUNNING_SERVER(host.move())
    assert (seen.place, seen.listens, seen.state) == (ServedPlace.OTHER, False, "activating")


def test_copies_that_nobody_mounted_are_not_taken_for_empty(host: MovingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.created = list(NAMES)
    monkeypatch.setattr(move_state, "mounted", list)
    facts = observe(MoveRecord(host.move(), MovePhase.COPIED))
    assert facts.copies is CopiesState.UNMOUNTED


def test_a_switch_is_known_though_the_old_files_were_removed(host: MovingHost) -> None:
    record = MoveRecord(host.move(), MovePhase.SWITCHED)
    assert not observe(record).is_switched
    host.created, host.mounted_at = list(NAMES), str(host.datadir)
    (host.datadir / "data").mkdir()
    facts = observe(record)
    assert (facts.is_switched, facts.old) == (True, OldState.GONE)


def test_files_of_others_at_the_mount_point_are_in_the_way(host: MovingHost) -> None:
    os.rename(host.datadir, f"{host.datadir}.before-zfs")
    record = MoveRecord(host.move(), MovePhase.SWITCHED)
    assert observe(record).in_the_way == ""
    host.datadir.mkdir()
    assert observe(record).in_the_way == ""
    (host.datadir / "ibdata1").write_text("a new server")
    assert observe(record).in_the_way == str(host.datadir)


def test_a_record_is_read_as_it_was_written(host: MovingHost) -> None:
    move_state.journal().parent.mkdir()
    record = MoveRecord(host.move(), MovePhase.COPIED, (1, 2), (3, 4), "ab", ("mysqld", "--user=mysql"))
    move_state.write(record)
    assert move_state.recorded() == record
