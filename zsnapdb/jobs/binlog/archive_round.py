"""The result of one round of the archiver."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.base.gtid import Gtids
from zsnapdb.planning.binlog.failover_history import RepeatedGtids
from zsnapdb.planning.binlog.route_elements import RouteEnd


@dataclass(frozen=True)
class Round:
    """The result of one round over the server's binlogs.

    Sizes are in bytes, and times are in microseconds UTC. `end` is the binlog position at which the archive of the
    incarnation `incarnation` now ends.
    """

    new_incarnation: str | None = None
    rotated: tuple[str, ...] = ()
    transactions: int = 0
    plain_size: int = 0
    gaps: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    blocked: str | None = None
    """The reason why the newest binlog cannot be archived; None if it can be archived."""
    end: BinlogCoordinates | None = None
    gtids: Gtids | None = None
    last_commit: int | None = None
    incarnation: str | None = None
    complete_until: int | None = None
    """The time up to which the archive is complete; None if this round recorded no such time."""
    unprotected: RouteEnd | None = None
    """The reason why no backup can be rolled forward with the new binlogs.

    This is determined only if this round began a history or found a gap.
    """
    repeated: tuple[RepeatedGtids, ...] = ()
    """GTIDs that the server assigned a second time. Set only if this round began a history or found a gap."""
    is_by_another: bool = False
    """Whether another archiver, which is running, archived the binlogs."""
