"""The documents of an instance's evidence: a report, a check of the log, and records of it."""

from __future__ import annotations

from typing import Annotated, Any

from zsnapdb.documents.base import At, Document, Dumped, Number, each, iso, rows

_Record = Annotated[dict[str, Any], Dumped("zsnapdb.repository.evidence_log.EvidenceRecord", without=("format",))]


def _dumped(records: Any) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json", exclude={"format"}) for record in records]


class ObjectiveStateFields(Document):
    """The present state of an objective."""

    objective: Annotated[str, At("name")]
    verdict: str
    reason: str


def _kept_objectives(objectives: Any) -> dict[str, bool]:
    return {one.objective.value: one.is_kept for one in objectives}


class DayFields(Document):
    """The runs and drills of a day (UTC), and the objectives that were kept."""

    day: Annotated[str, At("day.day", iso)]
    good: Annotated[int, At("day.good")]
    failed: Annotated[int, At("day.failed")]
    backups: Annotated[int, At("day.backups")]
    longest_without_backup_seconds: Annotated[Number | None, At("day.longest_without_backup")]
    longest_without_drill_seconds: Annotated[Number | None, At("day.longest_without_drill")]
    drills: Annotated[int, At("day.drills")]
    failed_drills: Annotated[int, At("day.failed_drills")]
    objectives: Annotated[dict[str, bool], At("objectives", _kept_objectives)]


class ReportedDrillFields(Document):
    """A drill in a report."""

    drill_id: str
    backup_id: str
    outcome: str
    seconds: float


class ExceptionFields(Document):
    """An exception for an audit."""

    when: str
    what: str


class PolicyChangeFields(Document):
    """A change of keys or policy. `before` or `after` is null if there was or is no value."""

    at: str
    what: str
    before: str | None
    after: str | None
    who: str
    run_id: str
    exit_code: int


def _changes(records: Any) -> list[dict[str, object]]:
    return [
        {
            "at": iso(record.finished),
            "what": change.what,
            "before": change.before or None,
            "after": change.after or None,
            "who": record.by,
            "run_id": record.run_id,
            "exit_code": record.exit_code,
        }
        for record in records
        for change in record.changes
    ]


class EvidenceReportDocument(Document):
    """The runs of some days, and the present protection."""

    instance: Annotated[str, At("report.log.instance")]
    repository: Annotated[str, At("report.log.repository")]
    is_whole: Annotated[bool, At("report.log.findings", lambda findings: not findings)]
    findings: Annotated[tuple[str, ...], At("report.log.findings", each("text"))]
    objectives: Annotated[tuple[ObjectiveStateFields, ...], At("report.protection.health.judgements")]
    days: Annotated[tuple[DayFields, ...], At("report.judged_days")]
    drills: Annotated[tuple[ReportedDrillFields, ...], At("report.drills.read")]
    unreadable_drills: Annotated[tuple[str, ...], At("report.drills.unreadable")]
    protection: Annotated[dict[str, str], At("protection", dict)]
    changes: Annotated[tuple[PolicyChangeFields, ...], At("records", _changes)]
    exceptions: Annotated[tuple[ExceptionFields, ...], At("exceptions", rows("when", "what"))]
    records: Annotated[tuple[_Record, ...], At("records", _dumped)]


class EvidenceFindingFields(Document):
    """An altered, removed or moved record of the evidence log."""

    number: int | None
    text: str


class EvidenceCheckDocument(Document):
    """Result of the check of the evidence log."""

    instance: str
    repository: str
    records: Annotated[int, At("records", len)]
    findings: tuple[EvidenceFindingFields, ...]


class UnbelievedRecordFields(Document):
    """A record that cannot be trusted, with the reason."""

    number: int
    problem: str


def _believed(records: Any) -> list[dict[str, Any]]:
    return _dumped(one.record for one in records if one.record is not None)


class EvidencePageDocument(Document):
    """Consecutive records of the evidence log. `next`: the number for the next request (null: no more records)."""

    instance: str
    repository: str
    records: Annotated[tuple[_Record, ...], At("records", _believed)]
    not_believed: Annotated[
        tuple[UnbelievedRecordFields, ...],
        At("records", lambda several: [one.link for one in several if one.record is None]),
    ]
    next: Annotated[int | None, At("last_number")]
