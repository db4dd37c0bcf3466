"""The documents of clones: one clone, lists, changes, and their plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from zsnapdb.base import audience
from zsnapdb.documents.base import At, Document, each, full_names, given, milliseconds, or_null, secret, stamp


def _for_administrators(value: Any) -> Any:
    """Return what can be of anybody; None for those who see their own alone."""
    return value if audience.current_audience().sees_all else None


def _names(attribute: str) -> Callable[[Any], Any]:
    names = each(attribute)
    return lambda several: names(_for_administrators(several) or ())


class CloneFields(Document):
    """A clone. `name` is what people call it, `id` never changes. `port` is where clients reach it.

    `kept_port`: the port that it keeps through a reset (null: none), `server_port` that of its server. They differ from
    `port` where HAProxy is away, or leads the kept port elsewhere.

    `address` is where clients reach it, HOST:PORT. `local_only`: only clients on the host of the clone do.

    `own_bytes` are those that it does not share with its source, `quota` how many it may have (0: any). `heartbeat`
    (seconds): the clone goes if its holder does not say so often that it is there (null: it need not). `waits`: it
    waits in the pool of its instance.
    """

    name: Annotated[str, At("label")]
    id: str
    instance: str
    backup_id: str
    source: str
    requested: str
    original: str
    masked: Annotated[bool, At("masked", given, False)]
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
    """A commit of a clone, and the clones that were made of it: for administrators, since they can be of anybody."""

    id: Annotated[str, At("set.backup_id")]
    clone: str
    created: str
    message: str
    clones: Annotated[tuple[str, ...], At("clones", _for_administrators, ())]


class UnreadableFields(Document):
    """A clone or machine whose properties were changed so that they cannot be read. It stays until they are right."""

    name: str
    dataset: Annotated[str, At("anchor")]
    instance: str
    reason: str
    hint: str


class ClonesDocument(Document):
    """All clones, and those whose properties cannot be read."""

    clones: tuple[CloneFields, ...]
    unreadable: tuple[UnreadableFields, ...]


class CloneDetailDocument(Document):
    """A clone, the branch that it is on (null: that cannot be read), and its commits."""

    clone: Annotated[CloneFields, At("info")]
    branch: str | None
    commits: tuple[CommitFields, ...]


class MaskingStepFields(Document):
    """A step of masking. A script has no number of statements."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


class MaskingFields(Document):
    """What masking did. `remains`: where old values may remain."""

    seconds: float
    steps: tuple[MaskingStepFields, ...]
    rebuilt: Annotated[tuple[str, ...], At("rebuilt", lambda tables: [f"{one.schema}.{one.name}" for one in tables])]
    remains: tuple[str, ...]


class CreationSecondsFields(Document):
    """How long each phase of making a clone took."""

    source: Annotated[float, At("source", milliseconds)]
    clone: Annotated[float, At("clone", milliseconds)]
    identity: Annotated[float, At("identity", milliseconds)]
    start: Annotated[float, At("start", milliseconds)]


class MaskingWayFields(Document):
    """How a clone is masked (none, prepared, prepares, alone), and why in this way."""

    way: str
    reason: str


class CreatedDocument(Document):
    """A new clone. Its user and password are null if its server was not started, `masked_how` if it was made before."""

    clone: Annotated[CloneFields, At("result.info")]
    user: Annotated[str | None, At("result.login.user")]
    password: str | None
    seconds: Annotated[CreationSecondsFields, At("result.seconds")]
    masking: Annotated[MaskingFields | None, At("result.masking")]
    masked_how: Annotated[MaskingWayFields | None, At("result.masked")]
    of_pool: Annotated[bool, At("result.is_of_pool")]


class HandOutPlanDocument(Document):
    """Which clone would come out of the pool."""

    name: str
    slot: CloneFields


class ClonePlanDocument(Document):
    """What making a clone would do. `backup_id` is null if the snapshot set is taken then."""

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
    masked_source: Annotated[bool, At("made_from.rules", given, False)]
    masked_how: Annotated[MaskingWayFields, At("made_from.masking")]
    notes: tuple[str, ...]


class PreparedDocument(Document):
    """A prepared snapshot set."""

    backup_id: Annotated[str, At("source.set.backup_id")]
    snapshots: Annotated[dict[str, str], At("source.set.snapshots", full_names)]
    masked: Annotated[bool, At("source.rules", given, False)]
    masking: MaskingFields | None


class RemovedFormsDocument(Document):
    """Prepared forms that are removed, or would be (`done`)."""

    removed: Annotated[tuple[str, ...], At("forms", each("anchor"))]
    done: Annotated[bool, At("is_done")]


class ChangedDocument(Document):
    """A clone after a change; `done` says which, as a participle."""

    done: str
    clone: Annotated[CloneFields, At("info")]


class ResetDocument(ChangedDocument):
    """A clone that was reset. `way`: by `undo` of rows, `swap` for a waiting clone, or `replace` of its data.

    `undone`: the changes of rows that were undone (null: it was another way). `reason`: why it was no cheaper way.
    """

    way: Annotated[str, At("result.way")]
    swap_seconds: Annotated[float | None, At("result.swap_seconds", milliseconds)]
    undone: Annotated[int | None, At("result.undone.rows")]
    undone_seconds: Annotated[float | None, At("result.undone.seconds", milliseconds)]
    reason: Annotated[str | None, At("result.reason", or_null)]


class IntentionDocument(Document):
    """What a change of a clone would do. `clone` is null if there is none yet."""

    what: str
    clone: Annotated[CloneFields | None, At("intention.clone")]
    steps: Annotated[tuple[str, ...], At("intention.steps")]


class ResetPlanDocument(Document):
    """What a reset would do. `backup_id` is null if the snapshot set is taken at the reset.

    `way` and `reason` are those of a reset. `slot` is the id of the waiting clone that would take the place.
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
    """What detaching costs, or cost."""

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
    """A clone that goes. Commits that are needed are handed over to another clone (commit to clone).

    What can be of anybody (`handed_over`, `promotes`, `foreign_snapshots`) is for administrators: others get it empty.
    """

    clone: Annotated[CloneFields, At("info")]
    commits: Annotated[tuple[CommitFields, ...], At("removed_commits")]
    handed_over: Annotated[dict[str, str], At("removal.steps.kept", _for_administrators, {})]
    promotes: Annotated[tuple[str, ...], At("removal.steps.promotions", _names("dataset"))]
    foreign_snapshots: Annotated[tuple[str, ...], At("foreign", _names("name"))]


class DestroyDocument(Document):
    """The clones that are destroyed, or would be."""

    name: str
    clones: Annotated[tuple[RemovalFields, ...], At("plans")]


class SweptFields(Document):
    """What the reaper does with a clone or machine, and why."""

    what: str
    name: str
    verdict: str
    reason: str
    error: Annotated[str | None, At("error.message")]


class ReapDocument(Document):
    """A sweep of the reaper."""

    swept: Annotated[tuple[SweptFields, ...], At("outcomes")]
    reaped: int


class LoginDocument(Document):
    """How a client on the host of a clone reaches it, and the `address` for others unless it is `local_only`."""

    host: str
    port: int
    socket: str
    user: str
    password: Annotated[str, At("password", secret)]
    dsn: str
    address: str
    local_only: bool


class KeptPortFields(Document):
    """A port: the clone that keeps it (null: none), where it must lead, and where HAProxy leads it (null: nowhere)."""

    port: int
    clone: Annotated[str | None, At("clone.label")]
    wanted: Annotated[str | None, At("wanted", str)]
    leads: Annotated[str | None, At("seen", str)]
    right: Annotated[bool, At("is_right")]


class AddressesDocument(Document):
    """The ports that clones keep. `error`: why HAProxy does not say where they lead."""

    ports: tuple[KeptPortFields, ...]
    error: Annotated[str | None, At("error.message")]


class ServerLogDocument(Document):
    """The last lines of the error log of a clone's server."""

    clone: Annotated[str, At("info.label")]
    lines: tuple[str, ...]


class DroppedSlotFields(Document):
    """A clone that waited and goes."""

    name: str
    reason: str


def _dropped(drops: Any) -> list[Mapping[str, str]]:
    return [{"name": slot.name, "reason": reason} for slot, reason in drops]


class PoolDocument(Document):
    """What filling a pool does, or did: the clones that wait on, that go, and that are made (null: only planned)."""

    waiting: Annotated[tuple[str, ...], At("plan.keeps", each("name"))]
    dropped: Annotated[tuple[DroppedSlotFields, ...], At("drops", _dropped)]
    makes: Annotated[int, At("plan.makes")]
    made: Annotated[tuple[str, ...] | None, At("made", each("name"))]
    short: Annotated[str | None, At("plan.short", or_null)]


class CloneSetPlanDocument(Document):
    """What making a set of clones would do."""

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
    """A new set of clones. `arrival_seconds`: until a row of the source was at every replica."""

    name: str
    topology: str
    members: tuple[MemberFields, ...]
    arrival_seconds: float | None
