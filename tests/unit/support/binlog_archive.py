"""Storage of binlogs as by the archiver: active binlogs in segments, rotated binlogs as complete files."""

from __future__ import annotations

from datetime import UTC, datetime

from zsnapdb.base.domain_types import Flavour
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, HeadPart, Incarnation, Segment, SpanPart
from zsnapdb.repository.crypto_keys import AgeIdentity, wrap
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.stream.chunks import Codec, seal, stream_hash
from zsnapdb.stream.crypto import ChunkCipher

KEY = bytes(range(32))
IDENTITY = AgeIdentity.new()
PART = KeyPart(id="1", recipients=(IDENTITY.recipient,), wrapped=wrap(KEY, [IDENTITY.recipient]))
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ID = "20261121T101112Z-7f3a"
NAME = "binlog.000007"
HEAD = HeadPart(
    server_uuid=UUID,
    server_id=1,
    version="9.7.4",
    created=1,
    previous_gtids=f"{UUID}:1-5",
    end=60,
    fingerprint="00" * 32,
)
INCARNATION = Incarnation(
    repository_id="0123",
    id=ID,
    instance="main",
    flavour=Flavour.MYSQL,
    server_uuid=UUID,
    server_id=1,
    began=datetime(2026, 11, 21, tzinfo=UTC),
    reason="the first one",
)


def add(
    archive: BinlogArchive,
    start: int,
    body: bytes,
    *,
    number: int | None,
    attempt: str = "0001",
    cipher: ChunkCipher | None = None,
) -> Segment:
    end = start + len(body)
    stored, chunk = seal(
        memoryview(body),
        Codec.ZSTD,
        3,
        cipher,
        archive.associated(archive.repository.id, ID, f"segment/{NAME}", start, last=False),
    )
    gtid = f"{UUID}:{number}" if number else None
    segment = Segment(
        repository_id=archive.repository.id,
        name=NAME,
        start=start,
        end=end,
        attempt=attempt,
        span=SpanPart(
            start=start,
            end=end,
            transactions=1 if number else 0,
            gtids=gtid,
            first_gtid=gtid,
            last_gtid=gtid,
            first_commit=number,
            last_commit=number,
        ),
        head=HEAD if start == 0 else None,
        codec=Codec.ZSTD,
        chunk=chunk,
        key=PART if cipher else None,
    )
    archive.add_segment(ID, segment, stored)
    return segment


def rotated(archive: BinlogArchive, body: bytes, attempt: str = "00aa") -> ArchivedFile:
    cipher = ChunkCipher(KEY, "1")
    half = len(body) // 2
    rows = []
    for index, part in enumerate((body[:half], body[half:]), 1):
        stored, chunk = seal(
            memoryview(part),
            Codec.ZSTD,
            3,
            cipher,
            archive.associated(archive.repository.id, ID, f"binlog/{NAME}", index, last=index == 2),
        )
        archive.put_chunk(ID, NAME, attempt, index, stored)
        rows.append(chunk)
    return ArchivedFile(
        repository_id=archive.repository.id,
        instance="main",
        incarnation=ID,
        name=NAME,
        flavour=Flavour.MYSQL,
        is_rotated=True,
        head=HEAD,
        span=SpanPart(start=0, end=len(body), transactions=2, gtids=f"{UUID}:6-7"),
        size=len(body),
        sha256=stream_hash(tuple(rows)),
        codec=Codec.ZSTD,
        attempt=attempt,
        chunks=tuple(rows),
        keys=(PART,),
    )
