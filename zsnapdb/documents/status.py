"""The documents of the state of protection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from zsnapdb.documents.base import At, Document, Number, dumped, iso, moment
from zsnapdb.documents.errors import DamageFields, ErrorFields, MissingFields, error_fields, errors_fields


class EndFields(Document):
    """The reason for the end of a range of recoverable points."""

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
    """Start of the present period that cannot be restored before the next backup."""

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
    """Return the failed notifications of a single status. The status of several instances has them in one place."""
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
    """The status of one of several instances: its document, or the error that prevented it."""

    instance: str
    repository: str
    exit_code: int
    error: Annotated[ErrorFields | None, At("error", error_fields)]
    status: Annotated[InstanceStatusFields | None, At("", _with("status"))]


class AllStatusDocument(Document):
    """The state of protection of several instances."""

    instances: Annotated[tuple[StateFields, ...], At("states")]
    failed_notifications: Annotated[tuple[FailedNotificationFields, ...], At("failed_notifications", _failed)]
