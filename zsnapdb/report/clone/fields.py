"""Fields of a clone and of a commit that several views share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from zsnapdb.base import audience
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.clone.pool import PoolMark

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.sources import Commit


class CloneFields(TypedDict):
    """A clone. `name` is what people call it, `id` never changes. `port` is where clients reach it.

    `kept_port`: the port that it keeps through a reset (null: none), `server_port` that of its server. They differ from
    `port` where HAProxy is away, or leads the kept port elsewhere.

    `own_bytes` are those that it does not share with its source, `quota` how many it may have (0: any). `heartbeat`
    (seconds): the clone goes if its holder does not say so often that it is there (null: it need not). `waits`: it
    waits in the pool of its instance.
    """

    name: str
    id: str
    instance: str
    backup_id: str
    source: str
    requested: str
    original: str
    masked: bool
    masked_at: str | None
    set: str | None
    part: str | None
    phase: str
    port: int
    kept_port: int | None
    server_port: int
    bind_address: str
    server_id: int
    created: str
    owner: str
    expires: str
    protected_until: str | None
    heartbeat: int | None
    profile: str
    rights: str
    position: str
    datasets: list[str]
    volumes: dict[str, str]
    mount: str
    client_file: str
    own_bytes: int
    quota: int
    independent: bool
    pid: int | None
    waits: bool


class CommitFields(TypedDict):
    """A commit of a clone, and the clones that were made of it: for administrators, since they can be of anybody."""

    id: str
    clone: str
    created: str
    message: str
    clones: list[str]


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
    return "never started" if info.phase is CopyPhase.NEW else "stopped"


def masking(c: CloneInfo) -> str:
    """Return whether the clone is masked, in words."""
    return f"masked at {c.masked}" if c.masked is not None else "not masked"


def port(c: CloneInfo) -> str:
    """Return where clients reach the clone, in words."""
    if c.address is None:
        return f"port {c.port}"
    if c.is_led_to:
        return f"port {c.address}, which it keeps"
    return f"port {c.port} of its server; HAProxy does not lead port {c.address}, which it keeps, there"


def clone_fields(c: CloneInfo) -> CloneFields:
    """Return the JSON fields of a clone."""
    return {
        "name": c.label,
        "id": c.id,
        "instance": c.instance,
        "backup_id": c.backup_id,
        "source": c.source,
        "requested": c.requested,
        "original": c.original,
        "masked": c.masked is not None,
        "masked_at": c.masked,
        "set": c.set_name or None,
        "part": c.part or None,
        "phase": c.phase.value,
        "port": c.client_port,
        "kept_port": c.address,
        "server_port": c.port,
        "bind_address": c.bind_address,
        "server_id": c.server_id,
        "created": c.created,
        "owner": c.owner,
        "expires": stamp(c.lease.expires),
        "protected_until": stamp(c.lease.protected_until) if c.lease.protected_until else None,
        "heartbeat": c.lease.heartbeat.every if c.lease.heartbeat is not None else None,
        "profile": c.profile.value,
        "rights": c.rights.value,
        "position": c.position,
        "datasets": list(c.datasets),
        "volumes": dict(c.volumes),
        "mount": str(c.mount),
        "client_file": str(c.client_file),
        "own_bytes": c.own_bytes,
        "quota": c.quota,
        "independent": c.is_independent,
        "pid": c.pid,
        "waits": c.waits,
    }


def commit_fields(made: Commit) -> CommitFields:
    """Return the JSON fields of a commit."""
    return {
        "id": made.set.backup_id,
        "clone": made.clone,
        "created": made.created,
        "message": made.message,
        # They can be of anybody.
        "clones": list(made.clones) if audience.current().sees_all else [],
    }
