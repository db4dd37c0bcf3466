"""The flags of a mount follow from the dataset's properties, as `zfs mount` has them; who is asked for a key."""

from __future__ import annotations

import pytest

from zsnapdb.zfs.mounting import flags, lacks_key

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
