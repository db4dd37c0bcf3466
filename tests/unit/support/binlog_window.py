"""Archived files and backups of invented MySQL histories, as input for the route through the archive."""

from __future__ import annotations

from dataclasses import dataclass, field

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import Gtids, GtidSet, joined
from zsnapdb.planning.binlog.route import BackupPoint

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "aaaaaaaa-0000-0000-0000-0000000000ff"
SECOND = 1_000_000


@dataclass(frozen=True)
class Kept:
    """An archived file of 1000 bytes; its transactions are committed at `created` to `created + 9` seconds."""

    incarnation: str
    number: int
    previous: Gtids | None
    gtids: Gtids | None
    created: int
    server: str = A
    is_rotated: bool = True
    is_anonymous: bool = False
    base: str = "binlog"
    gap: str | None = None
    start: int = 100
    end: int = 1000
    size: int = 1000
    fingerprint: str = field(default="")

    @property
    def name(self) -> str:
        return f"{self.base}.{self.number:06d}"

    @property
    def reached(self) -> Gtids | None:
        return joined(self.previous, self.gtids)

    @property
    def first_commit(self) -> int | None:
        return self.created * SECOND

    @property
    def last_commit(self) -> int | None:
        return (self.created + 9) * SECOND


def gtids(text: str) -> GtidSet:
    return GtidSet.parse(text)


def own(number: int, created: int | None = None, *, incarnation: str = "1", rotated: bool = True) -> Kept:
    """File number N of server A: ten transactions, numbers 10(N-1)+1 to 10N, from second 10N on."""
    before = gtids(f"{A}:1-{10 * (number - 1)}") if number > 1 else GtidSet()
    return Kept(
        incarnation,
        number,
        before,
        gtids(f"{A}:{10 * (number - 1) + 1}-{10 * number}"),
        10 * number if created is None else created,
        is_rotated=rotated,
    )


def at(
    second: int, text: str, file: str | None = "binlog.000002", offset: int = 500, server: str = A, name: str = "b"
) -> BackupPoint:
    where = BinlogCoordinates(file, offset) if file else None
    return BackupPoint(name, second * SECOND, second * SECOND, server, where, gtids(text), Flavour.MYSQL)
