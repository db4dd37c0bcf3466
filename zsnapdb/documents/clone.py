"""The documents of clones, cloned machines and bases: single objects, lists, changes, and plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from zsnapdb.base import run_context
from zsnapdb.documents.base import At, Document, each, full_names, is_given, milliseconds, or_null, secret, stamp


def _for_administrators(value: Any) -> Any:
    """Return the value if the reader may see all clones; None if the reader may see only their own clones."""
    return value if run_context.current_audience().sees_all else None


def _names(attribute: str) -> Callable[[Any], Any]:
    names = each(attribute)
    return lambda several: names(_for_administrators(several) or ())


class CloneFields(Document):
    """A clone. Users choose `name`; `id` never changes. Clients connect to `port`.

    - `kept_port`: the port that the clone keeps after a reset (null: none).
    - `server_port`: the port of its server. `port` is the fixed port if HAProxy forwards that port to the server, and
      otherwise the server's port.
    - `address`: HOST:PORT for clients. `local_only`: whether only clients on the clone's host can reach the clone.
    - `own_bytes`: bytes that the clone does not share with its source.
    - `quota`: maximum of `own_bytes` (0: unlimited).
    - `heartbeat`: seconds without a heartbeat after which the clone is destroyed (null: no heartbeats needed).
    - `guid`: the identity of the clone, which a reset does not change. A later clone of the same name or id has a
      different GUID.
    - `waits`: whether the clone is in the pool of its instance.
    """

    name: Annotated[str, At("label")]
    id: str
    instance: str
    backup_id: str
    source: str
    requested: str
    original: str
    masked: Annotated[bool, At("masked", is_given, False)]
    masked_at: Annotated[str | None, At("masked")]
    set: Annotated[str | None, At("set_name", or_null)]
    part: Annotated[str | None, At("part", or_null)]
    phase: str
    port: Annotated[int, At("client_port")]
    kept_port: int | None
    server_port: Annotated[int, At("port")]
    bind_address: str
    address: str
    local_only: bool
    server_id: int
    created: str
    guid: str
    owner: str
    expires: Annotated[str, At("lease.expires", stamp)]
    protected_until: Annotated[str | None, At("lease.protected_until", stamp)]
    heartbeat: Annotated[int | None, At("lease.heartbeat.every")]
    profile: str
    rights: str
    position: str
    datasets: tuple[str, ...]
    volumes: dict[str, str]
    mount: str
    client_file: str
    own_bytes: int
    quota: int
    independent: Annotated[bool, At("is_independent")]
    pid: int | None
    elsewhere: Annotated[str | None, At("elsewhere", or_null)]
    waits: bool


class CommitFields(Document):
    """A commit of a clone, and the clones created from it.

    Only administrators see these clones, because they may have any owner.
    """

    id: Annotated[str, At("set.backup_id")]
    clone: str
    created: str
    message: str
    clones: Annotated[tuple[str, ...], At("clones", _for_administrators, ())]


class UnreadableFields(Document):
    """A clone or machine with unreadable properties. It is kept until the properties are repaired."""

    name: str
    dataset: Annotated[str, At("anchor")]
    instance: str
    reason: str
    hint: str


class ClonesDocument(Document):
    """All clones, and the clones with unreadable properties."""

    clones: tuple[CloneFields, ...]
    unreadable: tuple[UnreadableFields, ...]


class CloneDetailDocument(Document):
    """A clone, its current branch (null: unreadable) and its commits."""

    clone: Annotated[CloneFields, At("info")]
    branch: str | None
    commits: tuple[CommitFields, ...]


class MaskingStepFields(Document):
    """A step of masking. If the step is a script, its number of statements is unknown."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


class MaskingFields(Document):
    """The result of masking. The field `remains` lists files and tables that may still contain old values."""

    seconds: float
    steps: tuple[MaskingStepFields, ...]
    rebuilt: Annotated[tuple[str, ...], At("rebuilt", lambda tables: [f"{one.schema}.{one.name}" for one in tables])]
    remains: tuple[str, ...]


class CreationSecondsFields(Document):
    """Seconds of each phase of a clone's creation."""

    source: Annotated[float, At("source", milliseconds)]
    clone: Annotated[float, At("clone", milliseconds)]
    identity: Annotated[float, At("identity", milliseconds)]
    start: Annotated[float, At("start", milliseconds)]


class MaskingWayFields(Document):
    """The way in which a clone is masked (none, prepared, prepares, alone), with the reason."""

    way: str
    reason: str


class CreatedDocument(Document):
    """A new clone. User and password are null if its server was not started.

    The field `masked_how` is null if the clone already existed: it came from the pool, or an earlier run had created
    it.
    """

    clone: Annotated[CloneFields, At("result.info")]
    user: Annotated[str | None, At("result.login.user")]
    password: str | None
    seconds: Annotated[CreationSecondsFields, At("result.seconds")]
    masking: Annotated[MaskingFields | None, At("result.masking")]
    masked_how: Annotated[MaskingWayFields | None, At("result.masked")]
    of_pool: Annotated[bool, At("result.is_of_pool")]


class HandOutPlanDocument(Document):
    """The clone that would be handed out from the pool."""

    name: str
    slot: CloneFields


class ClonePlanDocument(Document):
    """The plan of a new clone. The field `backup_id` is null if the snapshot set is created together with the clone."""

    name: str
    instance: str
    source: str
    backup_id: Annotated[str | None, At("backup_id", or_null)]
    snapshots: Annotated[dict[str, str], At("made_from.snapshots")]
    receives: Annotated[tuple[str, ...], At("made_from.receives")]
    prepared: Annotated[bool, At("made_from.is_prepared")]
    replays: Annotated[int, At("made_from.replays")]
    datasets: Annotated[dict[str, str], At("layout.datasets")]
    mount: Annotated[str, At("copy.root")]
    port: int
    bind_address: str
    expires: Annotated[str, At("lease.expires", stamp)]
    owner: str
    profile: str
    starts: Annotated[bool, At("request.starts")]
    masks: Annotated[bool, At("asks_for_masking")]
    masked_source: Annotated[bool, At("made_from.rules", is_given, False)]
    masked_how: Annotated[MaskingWayFields, At("made_from.masking")]
    notes: tuple[str, ...]


class PreparedDocument(Document):
    """A prepared snapshot set."""

    backup_id: Annotated[str, At("source.set.backup_id")]
    snapshots: Annotated[dict[str, str], At("source.set.snapshots", full_names)]
    masked: Annotated[bool, At("source.rules", is_given, False)]
    masking: MaskingFields | None


class RemovedFormsDocument(Document):
    """Prepared or received sets that are removed, or would be removed (if `done` is false)."""

    removed: Annotated[tuple[str, ...], At("forms", each("anchor"))]
    done: Annotated[bool, At("is_done")]


class ChangedDocument(Document):
    """A clone after a change; `done` names the change as a participle, such as `started`."""

    done: str
    clone: Annotated[CloneFields, At("info")]


class ResetDocument(ChangedDocument):
    """A clone after a reset. The way is `undo` (changed rows), `swap` (for a pool clone) or `replace` (all data).

    The field `undone` is the number of undone row changes (null unless `way` is `undo`). The field `reason` says why a
    faster way was not possible.
    """

    way: Annotated[str, At("result.way")]
    swap_seconds: Annotated[float | None, At("result.swap_seconds", milliseconds)]
    undone: Annotated[int | None, At("result.undone.rows")]
    undone_seconds: Annotated[float | None, At("result.undone.seconds", milliseconds)]
    reason: Annotated[str | None, At("result.reason", or_null)]


class IntentionDocument(Document):
    """The plan of a change. The field `clone` is null if the clone does not exist yet."""

    what: str
    clone: Annotated[CloneFields | None, At("intention.clone")]
    steps: Annotated[tuple[str, ...], At("intention.steps")]


class ResetPlanDocument(Document):
    """The plan of a reset. The field `backup_id` is null if the reset creates the snapshot set.

    The fields `way` and `reason` have the same meaning as for a reset. The field `slot` is the id of the pool clone
    that would replace the clone.
    """

    clone: Annotated[CloneFields, At("intention.info")]
    way: Annotated[str, At("intention.way")]
    slot: Annotated[str | None, At("intention.slot.id")]
    backup_id: str | None
    snapshots: Annotated[dict[str, str], At("intention.replaces.snapshots", default={})]
    original: Annotated[bool, At("intention.replaces.is_original", default=True)]
    drops: Annotated[str | None, At("intention.replaces.drops", or_null)]
    undoes: Annotated[int | None, At("intention.undoes")]
    reason: Annotated[str | None, At("intention.reason", or_null)]


class DetachDocument(Document):
    """The planned or actual cost of a detachment."""

    clone: Annotated[CloneFields, At("plan.info")]
    cost_bytes: Annotated[int, At("plan.cost")]
    available_bytes: Annotated[int, At("plan.available")]


class CommittedDocument(Document):
    """A new commit of a clone."""

    id: Annotated[str, At("set.backup_id")]
    clone: Annotated[str, At("info.label")]
    message: str
    snapshots: Annotated[dict[str, str], At("set.snapshots", full_names)]


class RemovalFields(Document):
    """A clone to be removed. If another clone needs a commit, `handed_over` maps the commit to that clone.

    `handed_over`, `promotes` and `foreign_snapshots` may concern any owner. Only administrators see these fields; for
    other readers they are empty.
    """

    clone: Annotated[CloneFields, At("info")]
    commits: Annotated[tuple[CommitFields, ...], At("removed_commits")]
    handed_over: Annotated[dict[str, str], At("removal.steps.kept", _for_administrators, {})]
    promotes: Annotated[tuple[str, ...], At("removal.steps.promotions", _names("dataset"))]
    foreign_snapshots: Annotated[tuple[str, ...], At("foreign", _names("name"))]


class DestroyDocument(Document):
    """The clones that are destroyed, or would be destroyed."""

    name: str
    clones: Annotated[tuple[RemovalFields, ...], At("plans")]


class SweptFields(Document):
    """The action of the reaper on a clone or machine, with the reason."""

    what: str
    name: str
    verdict: str
    reason: str
    error: Annotated[str | None, At("error.message")]


class ReapDocument(Document):
    """A run of the reaper."""

    swept: Annotated[tuple[SweptFields, ...], At("outcomes")]
    reaped: int


class LoginDocument(Document):
    """Address and login of a clone. The field `address` is for clients on other hosts, unless `local_only`."""

    host: str
    port: int
    socket: str
    user: str
    password: Annotated[str, At("password", secret)]
    dsn: str
    address: str
    local_only: bool


class KeptPortFields(Document):
    """A reserved port: its clone (null: no clone), its required target, and its target in HAProxy (null: no target)."""

    port: int
    clone: Annotated[str | None, At("clone.label")]
    wanted: Annotated[str | None, At("wanted", str)]
    leads: Annotated[str | None, At("seen", str)]
    right: Annotated[bool, At("is_right")]


class AddressesDocument(Document):
    """The ports that are reserved for clones. The field `error` says why zsnapdb could not query HAProxy."""

    ports: tuple[KeptPortFields, ...]
    error: Annotated[str | None, At("error.message")]


class ServerLogDocument(Document):
    """The last lines of the error log of a clone's server."""

    clone: Annotated[str, At("info.label")]
    lines: tuple[str, ...]


class DroppedSlotFields(Document):
    """A pool clone that is removed."""

    name: str
    reason: str


def _dropped(drops: Any) -> list[Mapping[str, str]]:
    return [{"name": slot.name, "reason": reason} for slot, reason in drops]


class PoolDocument(Document):
    """The plan or result of filling a pool: kept, removed and created clones.

    The field `made` is null in a plan.
    """

    waiting: Annotated[tuple[str, ...], At("plan.keeps", each("name"))]
    dropped: Annotated[tuple[DroppedSlotFields, ...], At("drops", _dropped)]
    makes: Annotated[int, At("plan.makes")]
    made: Annotated[tuple[str, ...] | None, At("made", each("name"))]
    short: Annotated[str | None, At("plan.short", or_null)]


class CloneSetPlanDocument(Document):
    """The plan of a set of clones."""

    names: tuple[str, ...]
    topology: str
    instance: Annotated[str, At("first.instance")]
    backup_id: Annotated[str | None, At("first.backup_id", or_null)]


class MemberFields(Document):
    """A clone of a set."""

    name: Annotated[str, At("clone.info.label")]
    part: str
    port: Annotated[int, At("clone.info.port")]
    address: Annotated[str, At("clone.login.address")]
    local_only: Annotated[bool, At("clone.login.local_only")]
    user: Annotated[str, At("clone.login.user")]
    password: Annotated[str, At("clone.login.password", secret)]
    mount: Annotated[str, At("clone.info.mount")]
    backup_id: Annotated[str, At("clone.info.backup_id")]


class CloneSetDocument(Document):
    """A new set of clones. The field `arrival_seconds` is the time until a row of the source reached every replica."""

    name: str
    topology: str
    members: tuple[MemberFields, ...]
    arrival_seconds: float | None


class MachineFields(Document):
    """A cloned virtual machine."""

    name: Annotated[str, At("machine.name")]
    base: Annotated[str, At("machine.base")]
    grade: Annotated[str | None, At("machine.grade", or_null)]
    uuid: Annotated[str, At("machine.uuid")]
    phase: Annotated[str, At("machine.phase")]
    state: str
    addresses: tuple[str, ...]
    network: Annotated[str, At("machine.network")]
    created: Annotated[str, At("machine.created")]
    owner: Annotated[str, At("machine.owner")]
    expires: Annotated[str, At("machine.lease.expires", stamp)]
    protected_until: Annotated[str | None, At("machine.lease.protected_until", stamp)]
    dataset: Annotated[str, At("machine.anchor")]
    volumes: Annotated[dict[str, str], At("machine.volumes")]
    own_bytes: Annotated[int, At("machine.own_bytes")]
    identity_inside: Annotated[str, At("machine.identity")]


class BaseFields(Document):
    """A base of virtual machines."""

    name: str
    made_of: str
    phase: str
    created: str
    dataset: Annotated[str, At("anchor")]
    volumes: dict[str, str]
    own_bytes: int


class SpaceFields(Document):
    """The space of a clone's volume, in bytes."""

    target: str
    size: int
    volblocksize: Annotated[int, At("block_size")]
    base_refreservation: Annotated[int, At("reserved")]
    refreservation: Annotated[int, At("target", lambda _: 0)]


class PlannedMachineFields(Document):
    """A machine to be cloned; `domain` is its XML."""

    name: str
    uuid: str
    dataset: Annotated[str, At("anchor")]
    volumes: dict[str, str]
    domain: Annotated[str, At("xml")]


class MachinesPlanDocument(Document):
    """The plan of cloned machines."""

    base: Annotated[str, At("origin.name")]
    grade: Annotated[str | None, At("origin.grade")]
    machines: tuple[PlannedMachineFields, ...]
    spaces: Annotated[tuple[SpaceFields, ...], At("origin.spaces")]
    network: Annotated[str, At("network.words")]
    expires: Annotated[str, At("lease.expires", stamp)]
    owner: str
    starts: bool
    waits_for: Annotated[str, At("marker.words")]
    identity_inside: Annotated[str, At("identity")]


class MachinesMadeDocument(Document):
    """Cloned machines."""

    base: Annotated[str, At("plan.origin.name")]
    grade: Annotated[str | None, At("plan.origin.grade")]
    machines: tuple[MachineFields, ...]
    seconds: dict[str, float]
    identity_inside: Annotated[str, At("plan.identity")]


class MachinesDocument(Document):
    """All machines, and the machines with unreadable properties."""

    machines: tuple[MachineFields, ...]
    unreadable: tuple[UnreadableFields, ...]


class MachineStepDocument(Document):
    """The plan of a command on a machine."""

    verb: str
    machine: Annotated[MachineFields, At("step.seen")]
    steps: Annotated[tuple[str, ...], At("step.steps")]


class MachineChangedDocument(Document):
    """A machine after a command."""

    verb: str
    machine: Annotated[MachineFields, At("seen")]


class MachineDestroyDocument(Document):
    """The machine that is destroyed, or would be destroyed; null if it does not exist."""

    name: str
    machine: Annotated[MachineFields | None, At("plan.seen")]
    foreign_snapshots: Annotated[tuple[str, ...], At("plan.others.snapshots", default=())]


class BasePlanDocument(Document):
    """The plan or result of the creation of a base."""

    name: str
    dataset: Annotated[str, At("anchor")]
    made_of: str
    volumes: dict[str, str]
    sizes: dict[str, int]
    source_snapshots: dict[str, str]


class BasesDocument(Document):
    """All bases."""

    bases: tuple[BaseFields, ...]


class BaseDestroyDocument(Document):
    """The base that is removed, or would be removed; null if it does not exist."""

    name: str
    base: BaseFields | None
