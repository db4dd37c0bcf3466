"""Archives all binlogs of the guest's server at once, as they are, through the repository's own format."""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.gtid import GtidPosition, GtidSet
from zsnapdb.jobs.common import Instance
from zsnapdb.mysql.transactions import read_head, transactions
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlogs import ArchivedFile, HeadPart, Incarnation, SpanPart, chunk_of, row_of
from zsnapdb.stream.chunks import Codec, seal, stream_hash

CHUNK = 8 << 20


def archive(instance: Instance, folder: Path, server_uuid: str | None, server_id: int) -> None:
    """Put every binlog the index names into the archive, up to its last complete transaction; what is there already stays."""
    repository = instance.open_repository()
    made = BinlogArchive(repository, instance.name)
    known = made.load()
    first = [line for line in (folder / "binlog.index").read_text().splitlines() if line]
    head = read_head((folder / Path(first[0]).name).open("rb"), first[0])
    assert head is not None
    if known.incarnations:
        incarnation = known.incarnations[-1]
    else:
        identity = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        incarnation = Incarnation(
            id=identity,
            instance=instance.name,
            flavour=head.flavour,
            server_uuid=server_uuid,
            server_id=server_id,
            began=datetime.now(UTC),
            reason="the first one",
        )
        made.begin(incarnation)
    there = {file.name for file in known.files}
    for line in first:
        if Path(line).name not in there:
            _add(made, incarnation, folder / Path(line).name)


def _add(made: BinlogArchive, incarnation: Incarnation, path: Path) -> None:
    with path.open("rb") as file:
        head = read_head(file, path.name)
        assert head is not None
        assert head.end is not None
        found = list(transactions(file, path.name))
    end = found[-1].end if found else head.end
    body = path.read_bytes()[:end]
    gtids: GtidSet | GtidPosition | None = None
    if found and found[0].number is not None:
        if len(found[0].number) == 2:
            gtids = GtidSet.of((str(t.number[0]), (int(t.number[1]), int(t.number[1]))) for t in found if t.number is not None)
        else:
            gtids = GtidPosition({t.number[0]: (t.number[1], t.number[2]) for t in found if t.number is not None and len(t.number) == 3})
    attempt = secrets.token_hex(2)
    rows = []
    pieces = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]
    for index, piece in enumerate(pieces, 1):
        associated = made.associated(incarnation.id, f"binlog/{path.name}", index, last=index == len(pieces))
        stored, chunk = seal(memoryview(piece), Codec.ZSTD, 1, None, associated)
        made.put_chunk(incarnation.id, path.name, attempt, index, stored)
        rows.append(row_of(chunk))
    span = SpanPart(
        start=0,
        end=end,
        transactions=len(found),
        gtids=None if gtids is None else str(gtids),
        first_gtid=found[0].gtid if found else None,
        last_gtid=found[-1].gtid if found else None,
        first_commit=min((t.committed for t in found), default=None),
        last_commit=max((t.committed for t in found), default=None),
        is_exact=all(t.is_exact for t in found),
    )
    made.commit(
        ArchivedFile(
            instance=made.instance,
            incarnation=incarnation.id,
            name=path.name,
            flavour=incarnation.flavour,
            is_sealed=True,
            head=HeadPart(
                server_uuid=incarnation.server_uuid,
                server_id=head.server_id,
                version=head.version,
                created=head.created,
                previous_gtids=None if head.previous is None else str(head.previous),
                end=head.end,
                fingerprint=hashlib.sha256(body[: head.end]).hexdigest(),
            ),
            span=span,
            size=len(body),
            sha256=stream_hash(tuple(chunk_of(row) for row in rows)),
            codec=Codec.ZSTD,
            attempt=attempt,
            chunks=tuple(rows),
        )
    )
