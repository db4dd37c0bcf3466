"""The documents of drills, rescues and consolidations, and of their plans."""

from __future__ import annotations

from typing import Annotated, Any

from zsnapdb.documents.base import At, Document, Dumped, Number, dumped, each, is_given, total
from zsnapdb.documents.errors import FindingFields
from zsnapdb.documents.manifest import ManifestFields
from zsnapdb.documents.restore import PointFields


class ConsolidatePlanDocument(Document):
    """The plan of a consolidation. `chain`: the backups to receive, the full one first. Bytes are of that chain."""

    instance: str
    original: Annotated[str, At("original.backup_id")]
    chain: Annotated[tuple[str, ...], At("chain", each("backup_id"))]
    dataset: Annotated[str, At("place.container")]
    plain_bytes: Annotated[int, At("chain", total("plain_size"))]
    stored_bytes: Annotated[int, At("chain", total("stored_size"))]
    reasons: tuple[str, ...]
    findings: tuple[FindingFields, ...]


class ConsolidateDocument(Document):
    """A finished consolidation. `original`: the backup with the same snapshots, the last one of `chain`."""

    backup: Annotated[ManifestFields, At("manifest")]
    original: Annotated[str, At("plan.original.backup_id")]
    chain: Annotated[tuple[str, ...], At("plan.chain", each("backup_id"))]
    receive_seconds: Number
    send_seconds: Number


class DrillPlanDocument(Document):
    """The plan of a drill. `sample_bytes` null: everything is checked."""

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
    """The computed result of a drill's evidence."""

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
    """The plan of a virtual machine's drill. `patience` is in seconds.

    - `client`: command that queries the server in the machine (null: no query).
    - `has_bounds`: the published state of the server is known.
    - `sample_bytes` null: all tables are checked.
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
    """A finished rescue. `rows`: number of rows of each table."""

    delivered: Annotated[str, At("delivered.where")]
    transport: Annotated[str, At("delivered.choice.transport")]
    reason: Annotated[str, At("delivered.choice.reason")]
    rows: Annotated[dict[str, int], At("delivered.rows", dict)]
    left_out: Annotated[tuple[str, ...], At("delivered.left_out")]
    server_seconds: Number
    delivery_seconds: Number
