"""Documents of the protection of instances: their state, and their evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from zsnapdb.documents.base import (
    At,
    DamageFields,
    Document,
    Dumped,
    ErrorFields,
    MissingFields,
    Number,
    dumped,
    each,
    error_fields,
    errors_fields,
    iso,
    moment,
    rows,
)


class EndFields(Document):
    """The reason why a range of recoverable points ends."""

    kind: str
    reason: str


class RangeFields(Document):
    """A range of recoverable points in time."""

    start: Annotated[str, At("start", moment)] = Field(alias="from")
    end: Annotated[str, At("end", moment)] = Field(alias="to")
    backups: tuple[str, ...]
    ends: EndFields


class GapFields(Document):
    """A period whose points cannot be restored."""

    start: Annotated[str, At("start", moment)] = Field(alias="from")
    end: Annotated[str, At("end", moment)] = Field(alias="to")
    kind: Annotated[str, At("reason.kind")]
    reason: Annotated[str, At("reason.reason")]


class UnprotectedSinceFields(Document):
    """The start of the current period without restorable points, which lasts until the next backup."""

    since: Annotated[str | None, At("ranges", lambda ranges: moment(ranges[-1].end) if ranges else None)]
    kind: Annotated[str, At("unprotected.kind")]
    reason: Annotated[str, At("unprotected.reason")]


class ObjectiveFields(Document):
    """An objective, and whether it is met."""

    objective: str
    subject: str
    verdict: str
    reason: str
    hint: str
    since: Annotated[str | None, At("fact", iso)]
    seconds: Number | None
    limit_seconds: Annotated[Number | None, At("limit")]


class NewestBackupFields(Document):
    """The newest backup."""

    backup_id: Annotated[str, At("newest.backup_id")]
    age_seconds: Annotated[float | None, At("backup_age")]


class NewestBinlogFields(Document):
    """The end of the archived binlogs."""

    file: Annotated[str, At("last.name")]
    offset: Annotated[int, At("last.end")]
    gtid: Annotated[str | None, At("last.span.last_gtid")]
    last_commit: Annotated[str | None, At("last_commit", moment)]
    complete_until: Annotated[str | None, At("complete_until", moment)]
    lag_seconds: Annotated[float | None, At("archive_lag")]


class NewestDrillFields(Document):
    """The newest drill."""

    drill_id: str
    backup_id: str
    finished: Annotated[str, At("finished", iso)]
    outcome: str


class FailedNotificationFields(Document):
    """A target whose last notification did not arrive."""

    target: str
    at: str
    event: str
    instance: str
    subject: str
    error: str


def _with(name: str) -> Callable[[Any], object]:
    return lambda one: one if getattr(one, name) is not None else None


def _failed(deliveries: Any) -> list[dict[str, object]]:
    return [{"target": target, **dumped(one)} for target, one in deliveries]


def _own_failed(of: Any) -> list[dict[str, object]]:
    """Return the failed notifications in the status of one instance.

    Inside the status of several instances, the result is empty, because that status has one list for all instances.
    """
    return _failed(getattr(of, "failed_notifications", ()))


class InstanceStatusFields(Document):
    """The state of protection of an instance."""

    instance: Annotated[str, At("status.instance")]
    at: Annotated[str, At("status.at", iso)]
    recoverable: Annotated[tuple[RangeFields, ...], At("status.window.ranges")]
    gaps: Annotated[tuple[GapFields, ...], At("status.window.gaps")]
    unprotected: Annotated[UnprotectedSinceFields | None, At("status.window", _with("unprotected"))]
    backup: Annotated[NewestBackupFields | None, At("status", _with("newest"))]
    binlog: Annotated[NewestBinlogFields | None, At("status", _with("last"))]
    drill: Annotated[NewestDrillFields | None, At("status.drill")]
    damaged: Annotated[tuple[ErrorFields, ...], At("status.damaged", errors_fields)]
    missing: Annotated[tuple[MissingFields, ...], At("status.missing")]
    known_damage: Annotated[tuple[DamageFields, ...], At("status.known_damage")]
    clock: Annotated[str, At("status.clock")]
    signing: Annotated[str, At("status.signing")]
    repository: Annotated[str, At("status.health.facts.repository")]
    verdict: Annotated[str, At("status.health.verdict")]
    objectives: Annotated[tuple[ObjectiveFields, ...], At("status.health.judgements")]
    failed_notifications: Annotated[tuple[FailedNotificationFields, ...], At("", _own_failed)]


class StateFields(Document):
    """The status of one of several instances: its document, or the error that prevented the document."""

    instance: str
    repository: str
    exit_code: int
    error: Annotated[ErrorFields | None, At("error", error_fields)]
    status: Annotated[InstanceStatusFields | None, At("", _with("status"))]


class AllStatusDocument(Document):
    """The state of protection of several instances."""

    instances: Annotated[tuple[StateFields, ...], At("states")]
    failed_notifications: Annotated[tuple[FailedNotificationFields, ...], At("failed_notifications", _failed)]


_Record = Annotated[dict[str, Any], Dumped("zsnapdb.repository.evidence_log.EvidenceRecord", without=("format",))]


def _dumped(records: Any) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json", exclude={"format"}) for record in records]


class ObjectiveStateFields(Document):
    """The current state of an objective."""

    objective: Annotated[str, At("name")]
    verdict: str
    reason: str


class DayFields(Document):
    """The runs and drills of a day (UTC), and for each objective whether it was met."""

    day: Annotated[str, At("day.day", iso)]
    good: Annotated[int, At("day.good")]
    failed: Annotated[int, At("day.failed")]
    backups: Annotated[int, At("day.backups")]
    longest_without_backup_seconds: Annotated[Number | None, At("day.longest_without_backup")]
    longest_without_drill_seconds: Annotated[Number | None, At("day.longest_without_drill")]
    drills: Annotated[int, At("day.drills")]
    failed_drills: Annotated[int, At("day.failed_drills")]
    objectives: Annotated[
        dict[str, bool], At("objectives", lambda all_: {one.objective.value: one.is_kept for one in all_})
    ]


class ReportedDrillFields(Document):
    """A drill in a report."""

    drill_id: str
    backup_id: str
    outcome: str
    seconds: float


class ExceptionFields(Document):
    """An event that is relevant for an auditor, such as a failed run."""

    when: str
    what: str


class PolicyChangeFields(Document):
    """A change of keys or policy.

    The field `before` is null if no value existed before, and `after` is null if none exists now.
    """

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
    """The runs in a period of days, and the current protection."""

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


class EvidencePageDocument(Document):
    """Consecutive records of the evidence log.

    The field `next` is the number for the next request, or null if there are no more records.
    """

    instance: str
    repository: str
    records: Annotated[
        tuple[_Record, ...], At("records", lambda all_: _dumped(one.record for one in all_ if one.record))
    ]
    not_believed: Annotated[
        tuple[UnbelievedRecordFields, ...],
        At("records", lambda several: [one.link for one in several if one.record is None]),
    ]
    next: Annotated[int | None, At("last_number")]
