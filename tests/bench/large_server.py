"""The metadata of a large server's repository: backups with all chunk rows, archived binlogs, and minutes of binlog."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from tests.bench.manifests import UUID, Origin, manifest, volume
from tests.bench.metadata_store import Writer
from zsnapdb.base.domain_types import Flavour, new_backup_id
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_descriptions import ArchivedFile, HeadPart, Incarnation, Segment, SpanPart
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.stored_document import with_digest
from zsnapdb.stream.chunks import Chunk, Codec, stream_hash

GIB = 1 << 30
TB = 10**12
INSTANCE = "main"
REPOSITORY_ID = "bench"
HOUR = timedelta(hours=1)
FULL_EVERY = 168
BINLOG = GIB
"""Bytes of a binlog at which the server begins the next one: the default of max_binlog_size."""
BINLOG_CHUNK = 32 << 20
STORED_SHARE = 0.35
"""Stored bytes of a plain byte: the compression that the model assumes."""
CHANGED_SHARE = 0.01
"""Part of the data that an hourly increment has."""
HEAD = 197
"""Bytes of a binlog before its first transaction."""
TRANSACTIONS = 1_000_000
"""Transactions of a full binlog."""


@dataclass(frozen=True)
class Server:
    """The size of a server's data, and of its binlog in a day, in bytes. `days` of backups and binlogs are kept."""

    name: str
    size: int
    binlog_a_day: int
    days: int
    chunk: int
    now: datetime

    @property
    def backups(self) -> int:
        return self.days * 24 + 1

    @property
    def begin(self) -> datetime:
        return self.now - HOUR * self.backups

    @property
    def seconds_a_binlog(self) -> float:
        return 86_400 * BINLOG / self.binlog_a_day

    @property
    def binlogs(self) -> int:
        """The number of rotated binlogs."""
        return int((self.now - self.begin).total_seconds() / self.seconds_a_binlog)

    @cached_property
    def noise(self) -> random.Random:
        return random.Random(58)

    def rows(self, count: int, size: int) -> tuple[Chunk, ...]:
        """Return so many chunks of a stream, each with its own hashes."""
        hashes = self.noise.randbytes(64 * count).hex()
        stored = int(size * STORED_SHARE)
        return tuple(
            Chunk(size, hashes[at : at + 64], stored, hashes[at + 64 : at + 128], None)
            for at in range(0, 128 * count, 128)
        )

    def place(self, moment: datetime) -> tuple[int, int, int]:
        """Return number, offset and transactions so far of the binlog at this moment; the first has the number 1."""
        number, part = divmod((moment - self.begin).total_seconds(), self.seconds_a_binlog)
        share = part / self.seconds_a_binlog
        return int(number) + 1, HEAD + int((BINLOG - HEAD) * share), int(TRANSACTIONS * (number + share))


def binlog_name(number: int) -> str:
    return f"binlog.{number:06d}"


def fingerprint(number: int) -> str:
    return hashlib.sha256(f"head {number}".encode()).hexdigest()


def gtids(first: int, last: int) -> str:
    return f"{UUID}:{first}-{last}" if last > first else f"{UUID}:{last}" if last else ""


def microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def write(server: Server, store: Writer) -> None:
    """Write the repository."""
    store.add_document("zsnapdb.json", b'{"format": 1, "id": "bench", "recipients": []}')
    for backup in backups(server):
        for part in backup.volumes:
            prefix = f"{layout.chunks(INSTANCE, backup.backup_id, part.role).path}"
            store.add_chunks(prefix, len(part.chunks), int(server.chunk * STORED_SHARE))
        store.add_document(layout.manifest(INSTANCE, backup.backup_id), with_digest(backup.encode()))
    write_archive(server, store)
    store.finish()


def backups(server: Server) -> Iterator[Manifest]:
    """Yield the backups, oldest first: a full one a week, and an increment each hour."""
    before: dict[str, int] = {}
    for number in range(server.backups):
        at = server.begin + HOUR * (number + 1) - timedelta(minutes=5)
        backup_id, is_full = new_backup_id(at, number), number % FULL_EVERY == 0
        volumes = []
        for role, dataset, share in (("data", "tank/mysql/data", 1.0), ("parent", "tank/mysql", 0.001)):
            guid = server.noise.getrandbits(63) + 1
            size = server.size * share * (1.0 if is_full else CHANGED_SHARE)
            count = max(1, int(size / server.chunk))
            part = volume(backup_id, role, dataset, guid, None if is_full else before[role], count * server.chunk)
            volumes.append(part.model_copy(update={"chunks": server.rows(count, server.chunk)}))
            before[role] = guid
        made = manifest(backup_id, number, at, (), Origin(REPOSITORY_ID))
        binlog, offset, done = server.place(at)
        position = made.source.position.model_copy(  # type: ignore[union-attr]
            update={
                "binlog_file": binlog_name(binlog),
                "binlog_offset": offset,
                "gtids": gtids(1, done),
                "binlog_fingerprint": fingerprint(binlog),
                "last_gtid": f"{UUID}:{done}" if done else None,
            }
        )
        source = made.source.model_copy(update={"position": position})
        yield made.model_copy(update={"source": source, "volumes": tuple(volumes)})


def write_archive(server: Server, store: Writer) -> None:
    """Write one history with all rotated binlogs, and the newest binlog in segments of a minute each."""
    history = new_backup_id(server.begin, 1)
    first = Incarnation(
        id=history,
        repository_id=REPOSITORY_ID,
        instance=INSTANCE,
        flavour=Flavour.MYSQL,
        server_uuid=UUID,
        server_id=1,
        began=server.begin,
        reason="this server has no archived binlogs yet",
        sequence=1,
    )
    store.add_document(layout.incarnation(INSTANCE, history), with_digest(first.encode()))
    for number in range(1, server.binlogs + 1):
        file = rotated(server, history, number)
        prefix = layout.binlog_chunks(INSTANCE, history, file.name, file.attempt).path
        store.add_chunks(prefix, len(file.chunks), int(BINLOG_CHUNK * STORED_SHARE))
        store.add_document(layout.rotated_binlog(INSTANCE, history, file.name), with_digest(file.encode()))
    for segment in segments(server):
        place = (INSTANCE, history, segment.name, segment.start, segment.end)
        store.add_document(layout.segment(*place), with_digest(segment.encode()))
        store.add_document(layout.segment_body(*place, segment.attempt), b"x")


def head(server: Server, number: int) -> HeadPart:
    began = server.begin + timedelta(seconds=(number - 1) * server.seconds_a_binlog)
    return HeadPart(
        server_uuid=UUID,
        server_id=1,
        version="9.7.4",
        created=int(began.timestamp()),
        previous_gtids=gtids(1, TRANSACTIONS * (number - 1)),
        end=HEAD,
        fingerprint=fingerprint(number),
    )


def span(server: Server, number: int, start: int, end: int) -> SpanPart:
    """Return what lies between two offsets of a binlog."""
    before, after = (
        (number - 1) * TRANSACTIONS + max(0, TRANSACTIONS * (offset - HEAD) // (BINLOG - HEAD))
        for offset in (start, end)
    )
    began, ended = (
        microseconds(server.begin + timedelta(seconds=server.seconds_a_binlog * done / TRANSACTIONS))
        for done in (before, after)
    )
    return SpanPart(
        start=start,
        end=end,
        transactions=after - before,
        gtids=gtids(before + 1, after),
        first_gtid=f"{UUID}:{before + 1}",
        last_gtid=f"{UUID}:{after}",
        first_commit=began,
        last_commit=ended,
    )


def rotated(server: Server, history: str, number: int) -> ArchivedFile:
    """Return the description of a binlog that is complete."""
    chunks = server.rows(BINLOG // BINLOG_CHUNK, BINLOG_CHUNK)
    return ArchivedFile(
        repository_id=REPOSITORY_ID,
        instance=INSTANCE,
        incarnation=history,
        name=binlog_name(number),
        flavour=Flavour.MYSQL,
        is_rotated=True,
        head=head(server, number),
        span=span(server, number, 0, BINLOG),
        size=BINLOG,
        sha256=stream_hash(chunks),
        codec=Codec.ZSTD,
        attempt=f"{number & 0xFFFF:04x}",
        chunks=chunks,
    )


def segments(server: Server) -> Iterator[Segment]:
    """Yield the segments of the newest binlog: one each minute, at most 60, since the archiver merges more."""
    number, end, _ = server.place(server.now)
    count = max(1, min(60, int(server.seconds_a_binlog * end / BINLOG / 60)))
    bounds = [end * at // count for at in range(count + 1)]
    for start, stop in itertools.pairwise(bounds):
        (chunk,) = server.rows(1, stop - start)
        yield Segment(
            repository_id=REPOSITORY_ID,
            name=binlog_name(number),
            start=start,
            end=stop,
            attempt="0001",
            span=span(server, number, start, stop),
            head=head(server, number) if start == 0 else None,
            codec=Codec.ZSTD,
            chunk=chunk,
        )


def sizes(days: int) -> dict[str, Server]:
    """Return the servers of the benchmark by name. Their newest backup was made in the last hour."""
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
    return {
        name: Server(name, size, binlog, days, 32 << 20 if size < 10 * TB else 128 << 20, now)
        for name, size, binlog in (
            ("10GB", TB // 100, TB // 400),
            ("200GB", TB // 5, TB // 20),
            ("2TB", 2 * TB, TB // 2),
            ("10TB", 10 * TB, TB // 2),
            ("50TB", 50 * TB, TB // 2),
        )
    }
