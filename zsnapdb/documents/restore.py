"""The documents of restores, rewinds, runbooks, drills, rescues and consolidations, and of their plans."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zsnapdb.documents.backup import ManifestFields
from zsnapdb.documents.base import (
    At,
    DamageFields,
    Document,
    Dumped,
    FindingFields,
    Number,
    described,
    dumped,
    each,
    is_given,
    iso,
    moment,
    total,
)
from zsnapdb.documents.binlog import ChangedTableFields


class RestoredTransactionFields(Document):
    """A transaction at the point of a restore.

    If `time_of` is `transaction`, `committed` is its commit time. Otherwise, it is the latest commit time in its
    binlog.
    """

    gtid: str | None
    committed: Annotated[str, At("committed", iso)]
    time_of: Literal["transaction", "binlog"]
    file: str
    end: int


class PointFields(Document):
    """The point of a restore: the last included and the first excluded transaction."""

    gtids: str | None
    last: RestoredTransactionFields | None
    following: RestoredTransactionFields | None
    notes: tuple[str, ...]


class StepFields(Document):
    """A step of a restore."""

    name: str
    kind: str
    what: Annotated[str, At("", described)]


class ReplayedBinlogFields(Document):
    """A replayed binlog, from the `host` or the `archive`."""

    incarnation: str
    file: str
    where: Annotated[str, At("is_local", lambda is_local: "host" if is_local else "archive")] = Field(alias="from")


def _logs(replays: Any) -> list[Any]:
    return [log for step in replays for log in step.logs]


def _chain(receives: Any) -> list[str]:
    return list(dict.fromkeys(step.backup_id for step in receives))


def _step_seconds(done: Any) -> dict[str, Any]:
    return {one.step: one.seconds for one in done}


class RestoreFields(Document):
    """Sources, targets and steps of a restore.

    The field `buffer_pool` is the size in bytes for the server during recovery and replay; null means the server's
    configured size.
    """

    restore_id: Annotated[str, At("plan.restore_id")]
    backup_id: Annotated[str, At("plan.backup_id")]
    requested: Annotated[str, At("plan.requested")]
    point: Annotated[PointFields, At("plan.point")]
    top: Annotated[str, At("plan.layout.top")]
    datasets: Annotated[dict[str, str], At("plan.layout.datasets")]
    mount: Annotated[str, At("plan.layout.mount")]
    steps: Annotated[tuple[StepFields, ...], At("plan.steps")]
    binlogs: Annotated[tuple[ReplayedBinlogFields, ...], At("plan.replays", _logs)]
    buffer_pool: Annotated[int | None, At("plan.buffer_pool")]


class _ExaminedChain(Document):
    target: Annotated[str, At("plan.backup_id")]
    chain: Annotated[tuple[str, ...], At("plan.receives", _chain)]
    findings: tuple[FindingFields, ...]


class RestorePlanDocument(RestoreFields, _ExaminedChain):
    """The plan of a restore, and the findings of its preflight."""


class RestoreDocument(RestoreFields):
    """A finished restore, or a restore that waits before `next_step`."""

    finished: Annotated[bool, At("is_finished")]
    next_step: Annotated[str | None, At("next_step.name")]
    option_file: str | None
    port: Annotated[int | None, At("handed_over.port")]
    pid: Annotated[int | None, At("handed_over.pid")]
    socket: Annotated[str | None, At("handed_over.socket")]
    notes: Annotated[tuple[str, ...], At("handed_over.notes", default=())]
    gtids: Annotated[str | None, At("plan.point.gtids")]
    seconds: Annotated[dict[str, Number], At("done", _step_seconds)]
    receive_seconds: Number
    recovery_seconds: Number
    replay_seconds: Number


class RetrievedClassFields(Document):
    """The objects of one archive class that cannot be read. The retrievals of `running` objects are running.

    The field `hours` is the usual longest duration of a retrieval. The field `usd` is an approximate price.
    """

    archive_class: str
    objects: int
    bytes: int
    running: int
    hours: int | None
    usd: float | None


def _classes(options: Any) -> list[dict[str, object]]:
    return [
        {
            "archive_class": one.archive_class,
            "objects": one.count,
            "bytes": one.size,
            "running": one.running,
            "hours": option.hours if option is not None else None,
            "usd": round(one.cost(option), 2) if option is not None else None,
        }
        for one, option in options
    ]


class RetrievalPlanDocument(Document):
    """The plan of a retrieval. If `exact` is false, an archived binlog decides which objects the restore needs."""

    instance: str
    requested: Annotated[str, At("request.to")]
    backups: tuple[str, ...]
    binlogs: Annotated[tuple[str, ...], At("binlogs", lambda places: ["/".join(one) for one in places])]
    tier: Annotated[str, At("request.tier")]
    days: Annotated[int, At("request.days")]
    archived: Annotated[tuple[RetrievedClassFields, ...], At("options", _classes)]
    exact: Annotated[bool, At("is_exact")]


class RetrievalDocument(Document):
    """The started retrievals, and the number of objects that cannot be read yet."""

    plan: RetrievalPlanDocument
    started: int
    left: int


class AbandonedDocument(Document):
    """An abandoned restore."""

    top: Annotated[str, At("plan.layout.top")]
    restore_id: Annotated[str, At("plan.restore_id")]
    server: Annotated[str, At("left")]


class RestoredDomainFields(Document):
    """The domain that a restore defines."""

    name: Annotated[str, At("domain")]
    uuid: str
    xml: str


class MachineRestoreStepFields(Document):
    """A step of the restore of a machine."""

    name: str
    text: Annotated[str, At("", described)]


class MachineRestoreFields(Document):
    """Sources, targets and steps of a machine's restore."""

    restore_id: Annotated[str, At("plan.restore_id")]
    instance: Annotated[str, At("plan.instance")]
    backup_id: Annotated[str, At("plan.backup_id")]
    requested: Annotated[str, At("plan.requested")]
    source: Annotated[str, At("plan", lambda _: "vm")]
    grade: Annotated[str, At("plan.grade")]
    top: Annotated[str, At("plan.top")]
    datasets: Annotated[dict[str, str], At("plan.datasets")]
    domain: Annotated[RestoredDomainFields | None, At("plan.define")]
    notes: Annotated[tuple[str, ...], At("plan.notes")]
    steps: Annotated[tuple[MachineRestoreStepFields, ...], At("plan.steps")]


class MachineRestorePlanDocument(MachineRestoreFields):
    """The plan of a machine's restore, and the findings of its preflight."""

    target: Annotated[str, At("plan.backup_id")]
    findings: tuple[FindingFields, ...]


class MachineRestoreDocument(MachineRestoreFields):
    """A finished restore of a machine, or a restore that waits before `next_step`."""

    finished: Annotated[bool, At("next_step", lambda _: False, default=True)]
    next_step: Annotated[str | None, At("next_step.name")]
    seconds: Annotated[dict[str, Number], At("done", _step_seconds)]


class MachineAbandonedDocument(Document):
    """An abandoned restore of a machine."""

    top: Annotated[str, At("plan.top")]
    backup_id: Annotated[str, At("plan.backup_id")]


class ReplicasRebuiltDocument(Document):
    """The replicas that were confirmed as rebuilt, as text. zsnapdb no longer warns about them."""

    instance: str
    readers: Annotated[tuple[str, ...], At("readers", each("who"))]


class BinlogCountFields(Document):
    """The numbers of binlogs that are replayed from this host and from the archive."""

    host: int
    archive: int


def _volumes_from(clones: Any) -> str:
    return "host" if clones else "repository"


def _log_counts(replays: Any) -> dict[str, int]:
    logs = _logs(replays)
    local = sum(log.is_local for log in logs)
    return {"host": local, "archive": len(logs) - local}


class LeftOutFields(Document):
    """The transactions that a rewind leaves out. The field `unknown` lists unknown facts with the reasons."""

    transactions: int | None
    at_least: Annotated[bool, At("is_least")]
    first_commit: Annotated[str | None, At("first", moment)]
    last_commit: Annotated[str | None, At("last", moment)]
    tables: tuple[ChangedTableFields, ...]
    more_tables: int
    statements: int
    unknown: tuple[str, ...]


class ArchivedRestFields(Document):
    """The end of the archived binlogs before a rewind. If the last binlogs are not archived, `missing` says why."""

    history: str | None
    file: Annotated[str | None, At("end.file")]
    offset: Annotated[int | None, At("end.offset")]
    missing: str


class RewindPlanDocument(Document):
    """The plan of a rewind. The fields `stop` and `start` contain command lines."""

    restore_id: Annotated[str, At("planned.restore.restore_id")]
    backup_id: Annotated[str, At("planned.restore.backup_id")]
    point: Annotated[PointFields, At("planned.restore.point")]
    volumes_from: Annotated[str, At("planned.restore.clones", _volumes_from)]
    binlogs_from: Annotated[BinlogCountFields, At("planned.restore.replays", _log_counts)]
    steps: Annotated[tuple[StepFields, ...], At("planned.restore.steps")]
    stop: Annotated[tuple[str, ...], At("planned.service.stop_words")]
    start: Annotated[tuple[str, ...], At("planned.service.start_words")]
    server_id: Annotated[int | None, At("planned.handover.server_id")]
    findings: tuple[FindingFields, ...]
    left_out: LeftOutFields | None


class RewindDocument(Document):
    """A rewound server, or a prepared server that waits for the exchange of the datasets.

    The field `replaced` contains the old dataset of each volume.
    """

    restore_id: Annotated[str, At("plan.restore_id")]
    instance: Annotated[str, At("plan.instance")]
    finished: Annotated[bool, At("is_finished")]
    backup_id: Annotated[str, At("plan.backup_id")]
    point: Annotated[PointFields, At("plan.point")]
    volumes_from: Annotated[str, At("plan.clones", _volumes_from)]
    binlogs_from: Annotated[BinlogCountFields, At("plan.replays", _log_counts)]
    prepare_seconds: Annotated[Number, At("prepared")]
    outage_seconds: Annotated[Number | None, At("outage")]
    finished_before: Annotated[str | None, At("finished_before", iso)]
    server_id: Annotated[int | None, At("handover.server_id")]
    replaced: Annotated[
        dict[str, str | None], At("handover.parts", lambda parts: {part.role: part.old for part in parts})
    ]
    backup: Annotated[ManifestFields | None, At("backup.manifest")]
    backup_error: Annotated[str | None, At("backup_error.message")]
    left_out: LeftOutFields | None
    archived: ArchivedRestFields | None


class CheckFields(Document):
    """A command of a check, and its expected output."""

    command: str
    expected: str | None


class PageFields(Document):
    """A step of a runbook."""

    name: str
    title: str
    command: str
    underneath: tuple[str, ...]
    checks: tuple[CheckFields, ...]
    if_it_fails: tuple[str, ...]
    expected_seconds: Number | None


def _pages(book: Any) -> list[dict[str, object]]:
    return [
        {
            "name": step.name,
            "title": page.title,
            "command": page.command,
            "underneath": page.underneath,
            "checks": page.looks,
            "if_it_fails": page.if_not,
            "expected_seconds": page.seconds,
        }
        for step, page in zip(book.plan.steps, book.entries, strict=True)
    ]


class RunbookDocument(Document):
    """A runbook."""

    instance: Annotated[str, At("plan.instance")]
    requested: Annotated[str, At("plan.requested")]
    backup_id: Annotated[str, At("plan.backup_id")]
    known_damage: Annotated[tuple[DamageFields, ...], At("damage")]
    gtids: Annotated[str | None, At("plan.point.gtids")]
    dataset: Annotated[str, At("plan.layout.top")]
    contacts: tuple[str, ...]
    drills: int
    signers: tuple[str, ...]
    before: tuple[CheckFields, ...]
    steps: Annotated[tuple[PageFields, ...], At("", _pages)]


class ConsolidatePlanDocument(Document):
    """The plan of a consolidation. The field `chain` lists the backups to receive, with the full backup first.

    All byte counts are sizes of the streams in the chain.
    """

    instance: str
    original: Annotated[str, At("original.backup_id")]
    chain: Annotated[tuple[str, ...], At("chain", each("backup_id"))]
    dataset: Annotated[str, At("place.container")]
    plain_bytes: Annotated[int, At("chain", total("plain_size"))]
    stored_bytes: Annotated[int, At("chain", total("stored_size"))]
    reasons: tuple[str, ...]
    findings: tuple[FindingFields, ...]


class ConsolidateDocument(Document):
    """A finished consolidation.

    The new full backup has the same snapshots as `original`, which is the last backup in `chain`.
    """

    backup: Annotated[ManifestFields, At("manifest")]
    original: Annotated[str, At("plan.original.backup_id")]
    chain: Annotated[tuple[str, ...], At("plan.chain", each("backup_id"))]
    receive_seconds: Number
    send_seconds: Number


class DrillPlanDocument(Document):
    """The plan of a drill. If `sample_bytes` is null, all pages and tables are checked."""

    instance: Annotated[str, At("restore.instance")]
    backup_id: Annotated[str, At("restore.backup_id")]
    gtids: Annotated[str | None, At("restore.point.gtids")]
    steps: Annotated[tuple[str, ...], At("restore.steps", each("name"))]
    dataset: Annotated[str, At("place.container")]
    seed: int
    sample_bytes: Annotated[int | None, At("budget")]
    probes: int
    innochecksum: str | None


class DrillVerdictFields(Document):
    """The verdict computed from a drill's evidence."""

    outcome: str
    seconds: float


_Drill = Annotated[dict[str, Any], Dumped("zsnapdb.repository.drills.Evidence", adding=DrillVerdictFields)]


def _evidence(evidence: Any) -> dict[str, Any]:
    return {**dumped(evidence), **DrillVerdictFields.of_result(evidence).json_fields()}


class DrillDocument(Document):
    """The evidence of a drill."""

    drill: Annotated[_Drill, At("evidence", _evidence)]


class DrillsDocument(Document):
    """The evidence of drills, oldest first."""

    drills: Annotated[tuple[_Drill, ...], At("drills", lambda drills: [_evidence(one) for one in drills])]


class MachineDrillPlanDocument(Document):
    """The plan of a virtual machine's drill. The patience is in seconds.

    - `client`: the command that queries the server in the machine (null: the drill sends no query).
    - `has_bounds`: whether the server's published position is known.
    - `sample_bytes`: approximate bytes of tables that are checked (null: all tables).
    """

    instance: Annotated[str, At("restore.instance")]
    backup_id: Annotated[str, At("restore.backup_id")]
    grade: Annotated[str, At("restore.grade")]
    steps: Annotated[tuple[str, ...], At("restore.steps", each("name"))]
    dataset: Annotated[str, At("place.container")]
    domain: Annotated[str, At("define.domain")]
    xml: Annotated[str, At("define.xml")]
    seed: int
    patience: Number
    client: tuple[str, ...] | None
    has_bounds: Annotated[bool, At("server", is_given, default=False)]
    probes: Annotated[int, At("probes", len)]
    sample_bytes: Annotated[int | None, At("budget")]
    notes: Annotated[tuple[str, ...], At("restore.notes")]


class RescueFields(Document):
    """Source, object and destination of a rescue."""

    instance: Annotated[str, At("plan.restore.instance")]
    backup_id: Annotated[str, At("plan.restore.backup_id")]
    object: Annotated[str, At("plan.request.original", str)]
    point: Annotated[PointFields, At("plan.restore.point")]
    source: Annotated[str, At("plan.local", lambda _: "clone", default="restore")]
    into: Annotated[str, At("plan.into")]


class RescueDocument(RescueFields):
    """A finished rescue. The field `rows` contains the number of rows of each table."""

    delivered: Annotated[str, At("delivered.where")]
    transport: Annotated[str, At("delivered.choice.transport")]
    reason: Annotated[str, At("delivered.choice.reason")]
    rows: Annotated[dict[str, int], At("delivered.rows", dict)]
    left_out: Annotated[tuple[str, ...], At("delivered.left_out")]
    server_seconds: Number
    delivery_seconds: Number
