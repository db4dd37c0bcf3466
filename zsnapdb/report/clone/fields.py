"""Fields of a clone and of a commit that several views share."""

from __future__ import annotations

from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.planning.clone.pool import PoolMark

_POOL_STATES = {
    PoolMark.WAITS: "waiting",
    PoolMark.HANDED_OUT: "running",
    PoolMark.NOT_GOOD: "refused",
    PoolMark.REPLACED: "replaced",
}


def state(info: CloneInfo) -> str:
    """Return the state of the clone's server, or the phase of a clone that is not complete."""
    if info.phase in (CopyPhase.MAKING, CopyPhase.DESTROYING, CopyPhase.CHANGING):
        return info.phase
    if info.pid is not None:
        return f"{'running' if info.pool is None else _POOL_STATES[info.pool]} ({info.pid})"
    if info.elsewhere:
        return f"running {info.elsewhere}"
    return "never started" if info.phase is CopyPhase.NEW else "stopped"


def masking(c: CloneInfo) -> str:
    """Return whether the clone is masked, in words."""
    return f"masked at {c.masked}" if c.masked is not None else "not masked"


def port(c: CloneInfo) -> str:
    """Return where clients reach the clone, in words."""
    if c.kept_port is None:
        return f"port {c.port}"
    if c.is_led_to:
        return f"port {c.kept_port}, which it keeps"
    return f"port {c.port} of its server; HAProxy does not lead port {c.kept_port}, which it keeps, there"
