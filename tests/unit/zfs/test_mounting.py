"""The flags of a mount follow from the dataset's properties, as `zfs mount` has them; who is asked for a key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from zsnapdb.base.errors import CommandError, NotFound
from zsnapdb.zfs import datasets, mounting, mounts
from zsnapdb.zfs.command import NotMountedByZfsError
from zsnapdb.zfs.mounting import flags, lacks_key, mount_all
from zsnapdb.zfs.mounts import MountEntry

DEFAULTS = {"readonly": "off", "setuid": "on", "devices": "on", "exec": "on", "atime": "on", "relatime": "on"}
NOSUID, NODEV, NOEXEC, RDONLY, NOATIME, RELATIME, STRICTATIME = 2, 4, 8, 1, 1 << 10, 1 << 21, 1 << 24


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, RELATIME),
        ({"relatime": "off"}, STRICTATIME),
        ({"atime": "off"}, NOATIME),
        ({"atime": "off", "setuid": "off", "devices": "off"}, NOATIME | NOSUID | NODEV),
        ({"readonly": "on", "exec": "off"}, RELATIME | RDONLY | NOEXEC),
    ],
)
def test_the_flags_of_a_mount_follow_from_the_properties(changed: dict[str, str], expected: int) -> None:
    assert flags({**DEFAULTS, **changed}) == expected


@pytest.mark.parametrize(
    ("mounted", "keystatus", "expected"),
    [("no", "unavailable", True), ("yes", "unavailable", False), ("no", "available", False), ("no", "-", False)],
)
def test_only_what_is_not_mounted_is_asked_for_its_key(mounted: str, keystatus: str, expected: bool) -> None:
    assert lacks_key({"mounted": mounted, "keystatus": keystatus}) is expected


def test_of_what_is_mounted_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(mounts, "mounted_datasets", lambda: {"tank/a", "tank/a/b"})

    def properties_of(names: list[str], _keys: object) -> dict[str, dict[str, datasets.Property]]:
        asked.append(names)
        raise NotFound("no such dataset")

    monkeypatch.setattr(datasets, "properties_of", properties_of)
    mount_all(["tank/a", "tank/a/b"])
    assert asked == []
    with pytest.raises(NotFound):
        mount_all(["tank/a", "tank/c"])
    assert asked == [["tank/a", "tank/c"]]


def legacy(names: list[str], keys: Sequence[str]) -> dict[str, dict[str, datasets.Property]]:
    values = {**dict.fromkeys(keys, "-"), **DEFAULTS, "mounted": "no", "mountpoint": "legacy"}
    return {name: {key: datasets.Property(values[key], "local") for key in keys} for name in names}


def test_legacy_mount_point_needs_a_known_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[tuple[str, Path]] = []
    monkeypatch.setattr(mounts, "mounted_datasets", frozenset)
    monkeypatch.setattr(datasets, "properties_of", legacy)
    monkeypatch.setattr(mounting, "_mount", lambda name, place, folder, flagged: made.append((name, place)))
    with pytest.raises(CommandError, match="tank/a has mountpoint=legacy"):
        mount_all(["tank/a"])
    assert made == []
    mount_all(["tank/a/b", "tank/a"], {"tank/a": str(tmp_path), "tank/a/b": str(tmp_path / "b")})
    assert made == [("tank/a", tmp_path), ("tank/a/b", tmp_path / "b")]


def test_filesystem_that_zfs_does_not_unmount_is_unmounted_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], *, dataset: str | None = None) -> str:
        ran.append(argv)
        if argv[0] == "zfs":
            raise NotMountedByZfsError("legacy mountpoint")
        return ""

    monkeypatch.setattr(datasets, "run_when_free", run)
    monkeypatch.setattr(mounts, "mounted_datasets", lambda: frozenset({"tank/a"}))
    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry("/m", "zfs", "tank/a"), MountEntry("/n", "ext4", "sda")])
    datasets.unmount_all(["tank/a", "tank/b"])
    assert ran == [["zfs", "unmount", "tank/a"], ["umount", "--no-canonicalize", "--", "/m"]]
