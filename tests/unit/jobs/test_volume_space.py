"""A full volume of this host's server is found without its server, and ZFS is asked only about a full one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import CommandError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health.volume_space import find_full_volume
from zsnapdb.jobs.record.server_unit_record import ServiceRecord
from zsnapdb.planning.server_space import START_BYTES
from zsnapdb.zfs import datasets, mounts
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import MountEntry

MOUNTS = [
    MountEntry("/", "ext4", "/dev/vda1"),
    MountEntry("/var/lib/mysql", "zfs", "tank/parent"),
    MountEntry("/var/lib/mysql/data", "zfs", "tank/data"),
    MountEntry("/srv/other", "zfs", "tank/other"),
]


def instance_of(tmp_path: Path, *, is_configured: bool, datadir: str | None) -> Instance:
    """Return an instance whose volumes are configured, or known from the record of its server, or neither."""
    site = Site(tmp_path / "repository")
    instance = site.instance()
    if not is_configured:
        instance = replace(instance, settings=instance.settings.model_copy(update={"volumes": None}))
    if datadir is not None:
        site.host.services.mkdir(parents=True)
        record = ServiceRecord(unit="mariadb.service", datadir=datadir)
        (site.host.services / "main.json").write_text(record.model_dump_json())
    return instance


@pytest.mark.parametrize("free", [0, START_BYTES - 1, START_BYTES, 1 << 40])
@pytest.mark.parametrize("full", ["/", "/var/lib/mysql", "/var/lib/mysql/data", "/srv/other"])
@pytest.mark.parametrize(
    ("is_configured", "datadir", "looked_at"),
    [
        (True, None, {"/var/lib/mysql", "/var/lib/mysql/data"}),
        (False, "/var/lib/mysql/data/files", {"/var/lib/mysql/data"}),
        (True, "/srv/other", {"/var/lib/mysql", "/var/lib/mysql/data", "/srv/other"}),
        (False, "/home/mysql", set()),
        (False, None, set()),
    ],
)
@pytest.mark.parametrize("has_zfs", [True, False])
def test_full_volume_is_found_if_the_server_uses_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_configured: bool,
    datadir: str | None,
    looked_at: set[str],
    full: str,
    free: int,
    has_zfs: bool,
) -> None:
    queries = []

    def children(dataset: str, names: tuple[str, ...]) -> dict[str, dict[str, Property]]:
        queries.append(dataset)
        if not has_zfs:
            raise CommandError("zfs get: the pool is suspended")
        values = dict.fromkeys(names, Property("0", "-"))
        return {"tank": values, "tank/hoard": {**values, "reservation": Property("7000", "local")}}

    monkeypatch.setattr(mounts, "mounted", lambda: MOUNTS)
    monkeypatch.setattr(datasets, "children", children)
    space = lambda path: SimpleNamespace(f_bavail=free if str(path) == full else 1 << 50, f_frsize=1)  # noqa: E731
    instance = instance_of(tmp_path, is_configured=is_configured, datadir=datadir)
    monkeypatch.setattr(os, "statvfs", space)
    volume = find_full_volume(instance)
    is_full = full in looked_at and free < START_BYTES
    assert (volume is not None) == is_full
    assert queries == (["tank"] if is_full else [])
    if volume is not None:
        assert volume.dataset == next(entry.source for entry in MOUNTS if entry.path == full)
        assert ("tank/hoard (6.8 KiB)" in volume.describe()) == has_zfs
