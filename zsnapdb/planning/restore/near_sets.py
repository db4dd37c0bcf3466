"""Which binlogs of a server are needed to reach a point from the sets on its host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.gtid import contains
from zsnapdb.base.model import Flavour, parse_gtids
from zsnapdb.planning.restore.targets import AtGtids, AtTime, BeforeGtid, Target

_SPARE = 2
"""So many sets before the point are considered: the newest of them may hold transactions after it."""


@dataclass(frozen=True)
class SetOnHost:
    """A set on this host: when it was made (UTC), the number of the binlog it stands in, and its GTIDs.

    `binlog` None: not known. `gtids` as the server prints them (None: its transactions have none).
    """

    created: datetime
    binlog: int | None
    gtids: str | None


def first_binlog(sets: Sequence[SetOnHost], target: Target | None, flavour: Flavour) -> int:
    """Return the number of the oldest binlog that leads from one of the sets, oldest first, to the target.

    Without a target it is the oldest that any of the sets needs. 0 if that is not known: then every binlog may be
    needed.
    """
    near = list(sets)
    if target is not None:
        near = ([one for one in sets if _is_before(one, target, flavour)] or near)[-_SPARE:]
    numbers = [one.binlog for one in near if one.binlog is not None]
    return min(numbers) if numbers and len(numbers) == len(near) else 0


def _is_before(one: SetOnHost, target: Target, flavour: Flavour) -> bool:
    """Whether the target may be reached from the set: it does not hold more than that, as far as is known."""
    if isinstance(target, AtTime):
        return one.created <= target.moment
    if isinstance(target, AtGtids | BeforeGtid) and one.gtids is not None:
        try:
            return not contains(parse_gtids(flavour, one.gtids), parse_gtids(flavour, target.text))
        except ValueError:
            return True
    return True
