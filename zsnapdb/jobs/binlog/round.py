"""The result of one round of the archiver."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.gtid import Gtids
from zsnapdb.base.model import BinlogCoordinates
from zsnapdb.planning.binlog.history import RouteEnd
from zsnapdb.planning.binlog.takeover import RepeatedGtids


@dataclass(frozen=True)
class Round:
    """The result of one round over the binlogs of the server.

    Sizes in bytes; `end` is the end of the archive now, in `incarnation`. Times are in microseconds UTC.
    """

    new_incarnation: str | None = None
    rotated: tuple[str, ...] = ()
    transactions: int = 0
    plain_size: int = 0
    gaps: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    blocked: str | None = None
    """The reason why the newest binlog cannot be archived, else None."""
    end: BinlogCoordinates | None = None
    gtids: Gtids | None = None
    last_commit: int | None = None
    incarnation: str | None = None
    complete_until: int | None = None
    """Until when the archive is complete, if that was recorded after this round."""
    unprotected: RouteEnd | None = None
    """The reason why no backup leads to what is archived now, if a history or a gap began in this round."""
    repeated: tuple[RepeatedGtids, ...] = ()
    """GTIDs that the server gives a second time, if a history or a gap began in this round."""
