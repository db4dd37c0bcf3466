"""Decides whether a server that was started after a rewind is the restored one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.gtid import GtidPosition, Gtids, contains
from zsnapdb.base.model import Flavour, parse_gtids
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.plan import RestorePoint


@dataclass(frozen=True)
class StartedServer:
    """What a started server says of itself: its server_id, and the GTIDs that it has executed (None: not asked)."""

    server_id: int
    executed: Gtids | None


@dataclass(frozen=True)
class ServerIds:
    """The server_id of the replaced server, and the one that the restored one must have (None: any)."""

    replaced: int
    wanted: int | None


def differences(flavour: Flavour, point: RestorePoint, ids: ServerIds, seen: StartedServer) -> list[str]:
    """Return in words by what the server differs from the restored one; nothing if it is that one.

    Its users may have written already, so it may have more.
    """
    wrong = []
    if ids.wanted is not None and seen.server_id != ids.wanted:
        wrong.append(f"its server_id is {seen.server_id}, not {ids.wanted}")
    if point.gtids is None or seen.executed is None:
        return wrong
    restored = parse_gtids(flavour, point.gtids)
    if not contains(seen.executed, restored):
        wrong.append(f"it has executed {seen.executed}, and lacks some of {restored}")
    if isinstance(seen.executed, GtidPosition) and isinstance(restored, GtidPosition) and ids.wanted is not None:
        wrong += _under_old_id(seen.executed, restored, ids.replaced)
    out = point.following.gtid if point.following is not None else None
    # A position of MariaDB does not say which server gave the numbers before its newest.
    if out is not None and family(flavour).gtids_are_sets and contains(seen.executed, parse_gtids(flavour, str(out))):
        wrong.append(f"it has {out}, which the point leaves out")
    return wrong


def _under_old_id(executed: GtidPosition, restored: GtidPosition, replaced: int) -> list[str]:
    """Name what was executed after the point under the server_id of the replaced server: a GTID may stand for two."""
    return [
        f"it has {domain}-{server}-{number} after the point, which the replaced server may have given to another one"
        for domain, (server, number) in executed.heads.items()
        if server == replaced and number > restored.heads.get(domain, (0, 0))[1]
    ]
