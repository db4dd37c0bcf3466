"""The flags of a mount follow from the dataset's properties, as `zfs mount` has them; who is asked for a key."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import NotThere
from zsnapdb.zfs import datasets, mounts
from zsnapdb.zfs.mounting import flags, lacks_key, mount_all

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
        raise NotThere("no such dataset")

    monkeypatch.setattr(datasets, "properties_of", properties_of)
    mount_all(["tank/a", "tank/a/b"])
    assert asked == []
    with pytest.raises(NotThere):
        mount_all(["tank/a", "tank/c"])
    assert asked == [["tank/a", "tank/c"]]
