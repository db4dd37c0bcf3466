"""Ids, ports, layouts, sizes and mounts: small rules other parts lean on."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from zsnapdb.errors import CommandError, ExistsError, NotThere, PreflightError
from zsnapdb.gtid import GtidSet
from zsnapdb.jobs.server_copy.prepare import lay_out
from zsnapdb.model import BinlogCoordinates, Flavour, Position, backup_time, is_backup_id, new_backup_id
from zsnapdb.planning.clone.ports import choose_port
from zsnapdb.report.units import size, table
from zsnapdb.zfs import core, snapshots
from zsnapdb.zfs.command import failure
from zsnapdb.zfs.mounts import parse


def test_backup_ids_sort_by_time_and_read_back() -> None:
    early = new_backup_id(datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC), 0xF7F3A)
    assert early == "20261120T101112Z-7f3a"
    assert early < new_backup_id(datetime(2026, 11, 20, 10, 11, 13, tzinfo=UTC), 0)
    assert backup_time(early) == datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)
    assert is_backup_id(early)
    assert not is_backup_id("20261120T101112Z-7F3A")
    assert not is_backup_id("daily-1")


def test_the_lowest_free_port_is_taken() -> None:
    assert choose_port(33070, 33079, {33070}, lambda port: port != 33071) == 33072


def test_a_full_range_of_ports_says_so() -> None:
    with pytest.raises(PreflightError, match="no free port from 1 to 2"):
        choose_port(1, 2, {1}, lambda port: False)


def test_nested_volumes_keep_their_shape_in_a_copy() -> None:
    source = {"parent": ("tank/mysql", "/var/lib/mysql"), "data": ("tank/mysql/data", "/var/lib/mysql/data")}
    found = lay_out(source, "tank/new", "/mnt/new")
    assert found.datasets == {"parent": "tank/new", "data": "tank/new/data"}
    assert found.mountpoints == {"parent": "/mnt/new", "data": "/mnt/new/data"}


def test_volumes_side_by_side_stand_side_by_side_in_a_copy() -> None:
    source = {"log": ("tank/log", "/log"), "data": ("tank/data", "/data")}
    found = lay_out(source, "tank/new", "/mnt/new")
    assert found.datasets == {"log": "tank/new/log", "data": "tank/new/data"}
    assert found.mountpoints == {"log": "/mnt/new/log", "data": "/mnt/new/data"}


def test_a_child_mounted_elsewhere_is_mounted_by_its_role_in_a_copy() -> None:
    source = {"parent": ("tank/mysql", "/var/lib/mysql"), "data": ("tank/mysql/data", "/srv/data")}
    assert lay_out(source, "tank/new", "/mnt/new").mountpoints == {"parent": "/mnt/new", "data": "/mnt/new/data"}


def test_sizes_read_well() -> None:
    assert [size(0), size(1023), size(1536), size(32 << 20), size(5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "32.0 MiB",
        "5.0 TiB",
    ]


def test_tables_align() -> None:
    assert table(("A", "LONG"), [("xyz", "1")]) == "A    LONG\nxyz  1"


def test_mount_entries_with_spaces_are_read() -> None:
    line = r"36 35 98:0 / /var/lib/my\040sql rw,noatime master:1 - zfs tank/mysql rw,xattr"
    (entry,) = parse(line)
    assert (entry.path, entry.fstype, entry.source) == ("/var/lib/my sql", "zfs", "tank/mysql")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cannot open 'tank/x': dataset does not exist", NotThere),
        ("cannot receive new filesystem stream: destination 'tank/x' exists", ExistsError),
        ("cannot create snapshot 'tank/x@y': permission denied", PreflightError),
        ("cannot destroy 'tank/x': dataset is busy", CommandError),
        ("cannot receive: out of space", PreflightError),
        ("something nobody has seen", CommandError),
    ],
)
def test_what_zfs_says_is_classified_and_kept(text: str, error: type) -> None:
    found = failure(["zfs", "x"], 1, text)
    assert type(found) is error
    assert text in found.message
    assert found.hint


def test_without_the_library_the_snapshot_command_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(core, "load", lambda: None)
    monkeypatch.setattr(snapshots, "run", lambda argv, timeout: seen.append(argv))
    pending = snapshots.PendingSnapshots.of(["t/a@x", "t/b@x"], {"zsnapdb:lock": "none"})
    pending.finish()
    assert seen == []
    pending.start()
    pending.finish()
    assert seen == [["zfs", "snapshot", "-o", "zsnapdb:lock=none", "t/a@x", "t/b@x"]]


def test_a_snapshot_that_takes_too_long_is_told_but_waited_for() -> None:
    go = threading.Event()

    def make() -> None:
        go.wait(10)

    pending = snapshots.PendingSnapshots(make)
    pending.start()
    assert not pending.done_within(0.01)
    go.set()
    pending.finish()
    assert pending.done_within(0.0)


def test_an_error_of_the_snapshot_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ExistsError("there", hint="h")

    pending = snapshots.PendingSnapshots(fail)
    pending.start()
    with pytest.raises(ExistsError):
        pending.finish()


SOURCES = ",".join(f"{n:08x}-0000-0000-0000-000000000000:1-{n + 9}" for n in range(200))


@pytest.mark.parametrize("limit", [200, 4096])
def test_a_position_fits_a_property_and_says_when_it_is_only_a_digest(limit: int) -> None:
    position = Position(Flavour.MYSQL, BinlogCoordinates("binlog.000007", 4711), GtidSet.parse(SOURCES), "x")
    assert len(position.describe()) > 4096
    short = position.short(limit)
    assert len(short) <= limit
    assert short.startswith("binlog.000007:4711 gtids-sha256:")
    assert (
        replace(position, gtids=GtidSet.parse(SOURCES.split(",")[0])).short(limit)
        == f"binlog.000007:4711 {SOURCES.split(',')[0]}"
    )
