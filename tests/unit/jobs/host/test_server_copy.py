"""The volumes of a copy lie to each other as those of their source do."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.host.server_copy import lay_out


def test_nested_volumes_keep_their_shape_in_a_copy() -> None:
    source = {"parent": ("tank/mysql", "/var/lib/mysql"), "data": ("tank/mysql/data", "/var/lib/mysql/data")}
    copy = lay_out(source, "tank/new", "/mnt/new")
    assert copy.datasets == {"parent": "tank/new", "data": "tank/new/data"}
    assert copy.mountpoints == {"parent": "/mnt/new", "data": "/mnt/new/data"}


def test_volumes_side_by_side_stand_side_by_side_in_a_copy() -> None:
    source = {"log": ("tank/log", "/log"), "data": ("tank/data", "/data")}
    copy = lay_out(source, "tank/new", "/mnt/new")
    assert copy.datasets == {"log": "tank/new/log", "data": "tank/new/data"}
    assert copy.mountpoints == {"log": "/mnt/new/log", "data": "/mnt/new/data"}


def test_a_child_mounted_elsewhere_is_mounted_by_its_role_in_a_copy() -> None:
    source = {"parent": ("tank/mysql", "/var/lib/mysql"), "data": ("tank/mysql/data", "/srv/data")}
    assert lay_out(source, "tank/new", "/mnt/new").mountpoints == {"parent": "/mnt/new", "data": "/mnt/new/data"}


@pytest.mark.parametrize("role", ["/etc/cron.d", "../x", "..", ""])
def test_a_role_cannot_lead_out_of_the_mount_point_of_a_copy(role: str) -> None:
    with pytest.raises(DamagedError, match="is not a path below /mnt/new"):
        lay_out({"log": ("tank/log", "/log"), role: ("tank/data", "/data")}, "tank/new", "/mnt/new")
