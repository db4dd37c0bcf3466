"""A full volume of this host's server is found without its server, and ZFS is asked only about a full one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import CommandError, ServerError
from zsnapdb.jobs.backup.server_source import open_server
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog import archive_run, purge
from zsnapdb.jobs.host.volume_space import find_full_volume
from zsnapdb.jobs.record.server_unit_record import ServiceRecord
from zsnapdb.mysql.session import Session
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


@pytest.mark.parametrize("free", [0, START_BYTES])
@pytest.mark.parametrize(
    "connects",
    [lambda instance: open_server(instance).__enter__(), purge.plan_now, archive_run.archive_once],
    ids=["backup", "binlog purge", "binlog archive"],
)
def test_unreachable_server_is_explained_if_its_volume_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connects: Callable[[Instance], object], free: int
) -> None:
    def session(*_: object, **__: object) -> None:
        raise ServerError("connecting on zsnapdb@/run/mysqld.sock: no socket (2002)", hint="is the server running")

    monkeypatch.setattr(Session, "open", session)
    monkeypatch.setattr(mounts, "mounted", lambda: MOUNTS)
    used = dict.fromkeys(("usedbydataset", "available"), Property("0", "-"))
    monkeypatch.setattr(datasets, "children", lambda *_: {"tank": used})
    instance = instance_of(tmp_path, is_configured=True, datadir=None)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    with pytest.raises(ServerError, match=r"no socket \(2002\)") as refusal:
        connects(instance)
    says = [part in str(refusal.value) for part in ("the pool tank has 0 B free", "hint: free space", "is the server")]
    assert says == ([True, True, False] if free == 0 else [False, False, True])
