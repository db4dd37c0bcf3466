"""The mount table is read as the kernel writes it."""

from __future__ import annotations

from zsnapdb.zfs.mounts import parse


def test_mount_entries_with_spaces_are_read() -> None:
    line = r"36 35 98:0 / /var/lib/my\040sql rw,noatime master:1 - zfs tank/mysql rw,xattr"
    (entry,) = parse(line)
    assert (entry.path, entry.fstype, entry.source) == ("/var/lib/my sql", "zfs", "tank/mysql")
