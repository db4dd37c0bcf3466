"""The mount table is read as the kernel writes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import ForeignMount, mounted_datasets, mounted_elsewhere, parse, working_dataset


def test_mount_entries_with_spaces_are_read() -> None:
    line = r"36 35 98:0 / /var/lib/my\040sql rw,noatime master:1 - zfs tank/mysql rw,xattr"
    (entry,) = parse(line)
    assert (entry.path, entry.fstype, entry.source) == ("/var/lib/my sql", "zfs", "tank/mysql")
    assert (entry.device, entry.shared, entry.master) == ("98:0", "", "1")


def test_a_dataset_is_found_in_the_mount_namespaces_of_other_processes(tmp_path: Path) -> None:
    """One process of each namespace is asked. A mount that nothing propagates to stays when ours goes."""
    lines = {
        "1": ("mnt:[1]", "36 35 0:50 / /m rw - zfs tank/mysql rw"),
        "self": ("mnt:[1]", "36 35 0:50 / /m rw shared:1 - zfs tank/mysql rw"),
        "20": ("mnt:[2]", "36 35 0:50 / /m rw master:1 - zfs tank/mysql rw"),
        "21": ("mnt:[2]", "36 35 0:50 / /m rw master:1 - zfs tank/mysql rw"),
        "22": ("mnt:[4]", "36 35 0:50 / /s rw shared:2 master:1 - zfs tank/mysql rw"),
        "23": ("mnt:[5]", "36 35 0:50 / /t rw master:2 - zfs tank/mysql rw"),
        "24": ("mnt:[6]", "36 35 0:50 / /u rw shared:9 - zfs tank/mysql rw"),
        "30": ("mnt:[3]", "36 35 0:50 / /in rw - zfs tank/mysql rw\n37 35 0:51 / /b rw - zfs tank/other rw"),
    }
    for pid, (namespace, text) in lines.items():
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "ns/mnt").symlink_to(namespace)
        (tmp_path / pid / "mountinfo").write_text(text)
    assert mounted_elsewhere(["tank/mysql"], tmp_path) == [
        ForeignMount("tank/mysql", "/m", 20, follows=True, device="0:50"),
        ForeignMount("tank/mysql", "/s", 22, follows=True, device="0:50"),
        ForeignMount("tank/mysql", "/t", 23, follows=True, device="0:50"),
        ForeignMount("tank/mysql", "/u", 24, follows=False, device="0:50"),
        ForeignMount("tank/mysql", "/in", 30, follows=False, device="0:50"),
    ]


def test_a_dataset_is_mounted_if_the_mount_table_has_it_and_not_if_only_a_snapshot_of_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = (
        "36 35 0:50 / /m rw - zfs tank/my\\040sql rw",
        "37 35 0:51 / /m/.zfs/snapshot/x rw - zfs tank/old@x rw",
        "38 35 0:52 / /n rw - ext4 tank/disk rw",
    )
    monkeypatch.setattr(Path, "read_bytes", lambda self: "\n".join(lines).encode())
    assert mounted_datasets() == {"tank/my sql"}
    assert mounts.mounted()[0].path == "/m"


def test_dataset_of_process_is_found_by_device_not_by_path(tmp_path: Path) -> None:
    """The process sees its folder under another path than this host."""
    device = os.stat(tmp_path).st_dev
    (tmp_path / "cwd").symlink_to(tmp_path)
    mine = f"36 35 {os.major(device)}:{os.minor(device)} / /inside rw - zfs tank/live rw"
    (tmp_path / "mountinfo").write_text(f"35 1 0:999 / / rw - zfs tank/root rw\n{mine}")
    assert working_dataset(tmp_path) == "tank/live"
    (tmp_path / "mountinfo").write_text(mine.replace("zfs", "ext4"))
    assert working_dataset(tmp_path) is None
    assert working_dataset(tmp_path / "gone") is None
