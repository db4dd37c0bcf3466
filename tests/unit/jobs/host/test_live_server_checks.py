"""What may take production's place: facts of the mount table."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import ForeignInsideError
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import MountEntry

PLACES = {"tank/mysql": "/var/lib/mysql"}
OWN = MountEntry("/var/lib/mysql", "zfs", "tank/mysql")


@pytest.mark.parametrize("is_bind", [False, True])
def test_a_dataset_with_a_second_mount_is_not_exchanged(monkeypatch: pytest.MonkeyPatch, *, is_bind: bool) -> None:
    jail = MountEntry("/srv/my jail", "zfs", "tank/mysql", is_bind)
    monkeypatch.setattr(mounts, "mounted", lambda: [OWN, jail])
    with pytest.raises(ForeignInsideError, match="also mounted at /srv/my jail") as refused:
        dataset_use_checks.refuse_second_mounts(PLACES)
    assert "umount '/srv/my jail'" in refused.value.hint


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [OWN],
        [OWN, OWN],
        # It was mounted elsewhere when it was backed up.
        [MountEntry("/srv/mysql", "zfs", "tank/mysql")],
        [OWN, MountEntry("/srv/other", "zfs", "tank/other"), MountEntry("/srv/x", "ext4", "tank/mysql")],
    ],
)
def test_a_dataset_with_one_place_is_exchanged(monkeypatch: pytest.MonkeyPatch, entries: list[MountEntry]) -> None:
    monkeypatch.setattr(mounts, "mounted", lambda: entries)
    dataset_use_checks.refuse_second_mounts(PLACES)
