"""Chooses the server and the pool of a setup, and decides whether setup can turn on binlogs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.quantities import size
from zsnapdb.planning.setup.facts import FoundPool, FoundServer

_ROOM = 1.2
"""The free space that the pool must have, as a multiple of the data directory's size. Compression is not considered."""


def choose_server(servers: Sequence[FoundServer], socket: str | None) -> tuple[FoundServer | None, str]:
    """Return the selected server, or None and the reason why no server was selected."""
    reachable = [server for server in servers if server.sockets]
    if socket is not None:
        for server in reachable:
            if socket in server.sockets:
                return server, ""
        return None, f"no running server listens on {socket}"
    if not reachable:
        return None, "no server runs on this host: start it, or name its socket"
    if len(reachable) > 1:
        listing = ", ".join(server.sockets[0] for server in reachable)
        return None, f"{len(reachable)} servers run on this host: name the socket of one of them ({listing})"
    return reachable[0], ""


def choose_pool(pools: Sequence[FoundPool], name: str | None, needed: int) -> tuple[FoundPool | None, str]:
    """Return the pool for a server's files, which need `needed` bytes, or None and the reason."""
    if name is not None:
        pools = [pool for pool in pools if pool.name == name]
    if not pools:
        return None, f"there is no pool {name} here" if name else "there is no pool here: make one with `zpool create`"
    if len(pools) > 1:
        return None, f"there are {len(pools)} pools: name one of {', '.join(pool.name for pool in pools)}"
    (pool,) = pools
    if pool.free < needed * _ROOM:
        return None, f"the pool {pool.name} has {size(pool.free)} free, and the files take {size(needed)}"
    return pool, ""


def missing_binlogs_reason(server: FoundServer) -> str:
    """Return why setup cannot turn on binlogs of this server; "" if it can."""
    if not server.service:
        return f"systemd does not run process {server.pid}, so setup cannot restart it"
    if not server.lets_root_in:
        return "root may not log in by the socket, so setup cannot see whether they are on"
    return "" if server.option_folder else "no folder of option files was found, such as /etc/mysql/conf.d"
