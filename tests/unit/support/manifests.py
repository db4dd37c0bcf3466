"""Manifests of small backups, for tests that ignore their contents."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.creation_order import in_order
from zsnapdb.repository.manifest import FilesystemType, KeyPart, Manifest, OtherSourcePart, VolumePart, ZvolType
from zsnapdb.repository.manifest_source import LockPart, PositionPart, ServerPart, ServerSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.chunks import Chunk, Codec


def after_the_examples() -> datetime:
    """Return the present time, or a time after the ids of all examples if this machine's clock is behind them."""
    return max(datetime.now(UTC), datetime(2026, 11, 22, tzinfo=UTC))


def manifest(backup_id: str = "20261120T101112Z-7f3a", instance: str = "main") -> Manifest:
    volume = VolumePart(
        role="data",
        dataset="tank/mysql/data",
        snapshot=f"zsnapdb-{backup_id}",
        guid=18446744073709551615,
        from_guid=None,
        send_flags=("-L",),
        features=4,
        type=FilesystemType(mountpoint="/var/lib/mysql/data", properties={"recordsize": "16384"}),
        codec=Codec.ZSTD,
        plain_size=10,
        sha256="00" * 32,
        chunks=(Chunk(10, "aa" * 32, 7, "bb" * 32, None),),
    )
    return Manifest(
        backup_id=backup_id,
        instance=instance,
        repository_id="id-1",
        created=datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC),
        tool_version="0",
        zfs_version="zfs-2.3.9",
        pool_guid=1,
        createtxg=2,
        source=ServerSourcePart(
            position=PositionPart(binlog_file="binlog.000001", binlog_offset=4, gtids="0-1-2", source="tail"),
            lock=LockPart(strategy="stage", reason="r", held_ms=1.5),
            server=ServerPart(
                flavour=Flavour.MARIADB, version="11.8", server_uuid=None, server_id=1, variables={"datadir": "/d"}
            ),
        ),
        volumes=(volume,),
    )


def of_kind(kind: str, backup_id: str = "20261120T101112Z-7f3a", **facts: object) -> Manifest:
    """Return a backup on a zvol, of a source that the format does not know."""
    whole = manifest(backup_id)
    zvol = whole.volumes[0].model_copy(update={"type": ZvolType(volsize=1 << 30, volblocksize=16384, properties={})})
    source = OtherSourcePart.model_validate({"kind": kind, **facts})
    return whole.model_copy(update={"source": source, "volumes": (zvol,)})


def encrypted(backup: Manifest, key: KeyPart) -> Manifest:
    """Return the backup with all its chunks encrypted with this key."""
    volumes = tuple(
        volume.model_copy(update={"chunks": tuple(chunk._replace(key_id=key.id) for chunk in volume.chunks)})
        for volume in backup.volumes
    )
    return backup.model_copy(update={"keys": (key,), "volumes": volumes})


def stored_manifests(repository: Repository) -> list[Manifest]:
    """Return the manifests of all backups of `main`, oldest first. Raises DamagedError if one is unreadable."""
    return list(in_order(repository.manifest("main", backup_id) for backup_id in repository.backup_ids("main")))


def readable_manifests(repository: Repository) -> list[Manifest]:
    """Return the manifests of all backups of `main` that are readable, oldest first."""
    readable = []
    for backup_id in repository.backup_ids("main"):
        with contextlib.suppress(DamagedError):
            readable.append(repository.manifest("main", backup_id))
    return list(in_order(readable))
