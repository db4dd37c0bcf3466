"""Manifests of backups of a 40 GiB server: a full backup a week, hourly increments."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zsnapdb.base.domain_types import Flavour, new_backup_id
from zsnapdb.repository.manifest import FilesystemType, Manifest, VolumePart
from zsnapdb.repository.manifest_source import LockPart, PositionPart, ServerPart, ServerSourcePart
from zsnapdb.stream.chunks import Codec

CHUNK = 32 << 20
FULL_CHUNKS = 1280
INCREMENT_CHUNKS = 24
FULL_EVERY = 168
UUID = "3b539809-e55b-11f1-8822-4e3318db0587"


@dataclass(frozen=True)
class Origin:
    """Where the backups lie, and of which server on which pool they are."""

    repository_id: str = "bench"
    pool_guid: int = 1
    server_uuid: str = UUID


def manifests(count: int, origin: Origin = Origin()) -> Iterator[tuple[str, bytes]]:
    """Yield backup id and manifest of each backup, oldest first."""
    noise = random.Random(1)
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=count)
    table = [[CHUNK, noise.randbytes(32).hex(), CHUNK // 3, noise.randbytes(32).hex(), "1"] for _ in range(FULL_CHUNKS)]
    before: dict[str, int] = {}
    for number in range(count):
        is_full = number % FULL_EVERY == 0
        at = start + timedelta(hours=number)
        backup_id = new_backup_id(at, number)
        volumes = []
        for role, dataset, share in (("data", "tank/mysql/data", 1.0), ("parent", "tank/mysql", 0.1)):
            guid = noise.getrandbits(64)
            rows = max(1, int((FULL_CHUNKS if is_full else INCREMENT_CHUNKS) * share))
            volumes.append(volume(backup_id, role, dataset, guid, None if is_full else before[role], rows * CHUNK))
            before[role] = guid
        document = json.loads(manifest(backup_id, number, at, tuple(volumes), origin).encode())
        for part in document["volumes"]:
            part["chunks"] = table[: part["plain_size"] // CHUNK]
        yield backup_id, json.dumps(document).encode() + b"\n"


def volume(backup_id: str, role: str, dataset: str, guid: int, from_guid: int | None, size: int) -> VolumePart:
    """Return the part of a volume with a stream of `size` bytes, without its table of chunks."""
    return VolumePart.model_construct(
        role=role,
        dataset=dataset,
        snapshot=f"zsnapdb-{backup_id}",
        guid=guid,
        from_guid=from_guid,
        send_flags=("-L",),
        features=4,
        type=FilesystemType(mountpoint="/var/lib/mysql", properties={"recordsize": "16384", "compression": "lz4"}),
        codec=Codec.ZSTD,
        plain_size=size,
        sha256="0" * 64,
        chunks=(),
    )


def manifest(backup_id: str, number: int, at: datetime, volumes: tuple[VolumePart, ...], origin: Origin) -> Manifest:
    """Return the manifest of backup `number`, made at that time."""
    return Manifest(
        backup_id=backup_id,
        instance="main",
        repository_id=origin.repository_id,
        created=at,
        tool_version="0",
        zfs_version="zfs-2.3.9",
        pool_guid=origin.pool_guid,
        # The pool of a lab is young: what it makes itself must be later.
        createtxg=number // 100,
        source=source(number, origin.server_uuid),
        volumes=volumes,
    )


def source(number: int, server_uuid: str) -> ServerSourcePart:
    """Return the server and its position at backup `number`."""
    return ServerSourcePart(
        position=PositionPart(
            binlog_file=f"binlog.{number:06d}",
            binlog_offset=4,
            gtids=f"{server_uuid}:1-{max(1, number * 1000)}",
            source="tail",
        ),
        lock=LockPart(strategy="instance", reason="blocks no write and keeps half-done DDL out", held_ms=2.5),
        server=ServerPart(
            flavour=Flavour.MYSQL,
            version="9.7.4",
            server_uuid=server_uuid,
            server_id=1,
            variables={f"variable_{n}": "x" * 40 for n in range(40)},
        ),
    )
