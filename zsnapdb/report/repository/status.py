"""The recoverable points in time of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import format_duration
from zsnapdb.jobs.repository.status import InstanceStatus, ProtectionStatus
from zsnapdb.planning.binlog.route import EndKind
from zsnapdb.planning.binlog.window import Window
from zsnapdb.planning.health.objectives import Health, Verdict
from zsnapdb.planning.notifications.occasions import FailedDelivery
from zsnapdb.report.damage import DamageFields, damage_fields
from zsnapdb.report.document import ErrorFields, error_fields, errors_fields
from zsnapdb.report.findings import MissingFields, missing_fields, missing_lines
from zsnapdb.report.parts import Labelled, Part, TabularView, spaced
from zsnapdb.report.units import moment

_LABEL_WIDTH = 14
"""Of the labels of all lines of a status."""


class EndFields(TypedDict):
    """Why a range of recoverable points ends."""

    kind: str
    reason: str


RangeFields = TypedDict("RangeFields", {"from": str, "to": str, "backups": list[str], "ends": EndFields})
"""A range of recoverable points in time."""
GapFields = TypedDict("GapFields", {"from": str, "to": str, "kind": str, "reason": str})
"""A time whose points cannot be restored."""


class UnprotectedSinceFields(TypedDict):
    """Since when nothing can be restored before the next backup."""

    since: str | None
    kind: str
    reason: str


class WindowFields(TypedDict):
    """The recoverable points in time."""

    recoverable: list[RangeFields]
    gaps: list[GapFields]
    unprotected: UnprotectedSinceFields | None


class ObjectiveFields(TypedDict):
    """An objective, and whether it is met."""

    objective: str
    subject: str
    verdict: str
    reason: str
    hint: str
    since: str | None
    seconds: float | None
    limit_seconds: float | None


class HealthFields(TypedDict):
    """Whether the objectives are met."""

    repository: str
    verdict: str
    objectives: list[ObjectiveFields]


class NewestBackupFields(TypedDict):
    """The newest backup."""

    backup_id: str
    age_seconds: float | None


class NewestBinlogFields(TypedDict):
    """How far binlogs are archived."""

    file: str
    offset: int
    gtid: str | None
    last_commit: str | None
    complete_until: str | None
    lag_seconds: float | None


class NewestDrillFields(TypedDict):
    """The newest drill."""

    drill_id: str
    backup_id: str
    finished: str
    outcome: str


class FailedNotificationFields(TypedDict):
    """A target whose last notification did not arrive."""

    target: str
    at: str
    event: str
    instance: str
    subject: str
    error: str


class InstanceStatusFields(WindowFields, HealthFields):
    """The state of protection of an instance."""

    instance: str
    at: str
    backup: NewestBackupFields | None
    binlog: NewestBinlogFields | None
    drill: NewestDrillFields | None
    damaged: list[ErrorFields]
    missing: list[MissingFields]
    known_damage: list[DamageFields]
    clock: str
    signing: str
    failed_notifications: list[FailedNotificationFields]


class StateFields(TypedDict):
    """The status of one of several instances: its document, or the error that prevented it."""

    instance: str
    repository: str
    exit_code: int
    error: ErrorFields | None
    status: InstanceStatusFields | None


class AllStatusDocument(TypedDict):
    """The state of protection of several instances."""

    instances: list[StateFields]
    failed_notifications: list[FailedNotificationFields]


def window_lines(window: Window) -> list[str]:
    """Return a line per range and gap in the order of time, and why the newest state cannot be restored, if so."""
    lines = []
    for number, part in enumerate(window.ranges):
        backups = f"{len(part.backups)} backups" if len(part.backups) > 1 else f"backup {part.backups[0]}"
        if part.end == part.start:
            lines.append(f"recoverable   {moment(part.start)}, {backups} alone")
        else:
            lines.append(f"recoverable   {moment(part.start)} to {moment(part.end)}, {backups}")
        if number < len(window.gaps):
            gap = window.gaps[number]
            lines.append(f"GAP           {moment(gap.start)} to {moment(gap.end)}: {gap.reason.reason}")
        elif window.unprotected is None and part.ends.kind not in (EndKind.NEWEST, EndKind.NO_ARCHIVE):
            lines.append(f"ENDS          {moment(part.end)}: {part.ends.reason}")
    if window.ranges and window.unprotected is not None:
        end = moment(window.ranges[-1].end)
        reason = window.unprotected.reason
        lines.append(f"UNPROTECTED   nothing later than {end} can be restored before the next backup: {reason}")
    return lines or ["recoverable   nothing: there is no backup that can be restored"]


def _machine_lines(backups: Sequence[str]) -> list[str]:
    """Return what can be restored of a virtual machine, if it is one: its backups, and no point between them."""
    if not backups:
        return []
    span = backups[0] if len(backups) == 1 else f"{backups[0]} to {backups[-1]}"
    return [f"recoverable   {len(backups)} backup(s) of a virtual machine, {span}"]


@dataclass(frozen=True)
class StatusView(TabularView):
    """The state of protection."""

    status: ProtectionStatus
    failed_notifications: Sequence[tuple[str, FailedDelivery]] = ()
    kind: ClassVar[str] = "status"

    def parts(self) -> Sequence[Part]:
        status = self.status
        lines = [f"instance      {status.instance}", *(_machine_lines(status.machines) or window_lines(status.window))]
        if status.newest is not None and status.backup_age is not None:
            lines.append(f"last backup   {status.newest.backup_id}, {format_duration(status.backup_age)} ago")
        else:
            lines.append("last backup   none")
        last = status.last
        if last is not None and status.complete_until is not None:
            what = "no transaction yet" if last.last_commit is None else last.span.last_gtid or "without GTIDs"
            lines.append(f"last binlog   {last.name}:{last.end}, {what}")
            if status.last_commit is not None:
                lines.append(f"last commit   {moment(status.last_commit)}")
            lines.append(
                f"complete      until {moment(status.complete_until)}, {format_duration(status.archive_lag or 0)} ago"
            )
        else:
            lines.append("last binlog   none archived")
        if status.drill is not None:
            lines.append(f"last drill    {status.drill.drill_id} of {status.drill.backup_id}: {status.drill.outcome}")
        else:
            lines.append("last drill    none")
        lines += [
            *(f"damaged       {error.message}" for error in status.damaged),
            *(f"damaged       {damage.describe()}" for damage in status.known_damage),
            *missing_lines(status.missing, _LABEL_WIDTH),
            *([f"clock         {status.clock}"] if status.clock else []),
            *([f"not signed    {status.signing}"] if status.signing else []),
            *health_lines(status.health),
            *notification_lines(self.failed_notifications),
        ]
        return [Labelled.at(lines, _LABEL_WIDTH)]

    def fields(self) -> InstanceStatusFields:
        status = self.status
        last, tried = status.last, status.drill
        return {
            "instance": status.instance,
            "at": status.at.isoformat(),
            **window_fields(status.window),
            "backup": {"backup_id": status.newest.backup_id, "age_seconds": status.backup_age}
            if status.newest
            else None,
            "binlog": {
                "file": last.name,
                "offset": last.end,
                "gtid": last.span.last_gtid,
                "last_commit": moment(status.last_commit) if status.last_commit is not None else None,
                "complete_until": moment(status.complete_until) if status.complete_until is not None else None,
                "lag_seconds": status.archive_lag,
            }
            if last
            else None,
            "drill": {
                "drill_id": tried.drill_id,
                "backup_id": tried.backup_id,
                "finished": tried.finished.isoformat(),
                "outcome": tried.outcome.value,
            }
            if tried
            else None,
            "damaged": errors_fields(status.damaged),
            "missing": missing_fields(status.missing),
            "known_damage": damage_fields(status.known_damage),
            "clock": status.clock,
            "signing": status.signing,
            **health_fields(status.health),
            "failed_notifications": notification_fields(self.failed_notifications),
        }


@dataclass(frozen=True)
class AllStatusView(TabularView):
    """The state of protection of several instances."""

    states: Sequence[InstanceStatus]
    failed_notifications: Sequence[tuple[str, FailedDelivery]] = ()
    kind: ClassVar[str] = "status-all"

    def parts(self) -> Sequence[Part]:
        blocks = [
            StatusView(state.status).parts()
            if state.status is not None
            else [Labelled.at([f"instance      {state.instance}", f"UNKNOWN       {state.error}"], _LABEL_WIDTH)]
            for state in self.states
        ]
        failed = notification_lines(self.failed_notifications)
        return spaced([*blocks, [Labelled.at(failed, _LABEL_WIDTH)]] if failed else blocks)

    def fields(self) -> AllStatusDocument:
        return {
            "instances": [
                {
                    "instance": state.instance,
                    "repository": state.repository,
                    "exit_code": state.exit_code,
                    "error": error_fields(state.error) if state.error is not None else None,
                    "status": StatusView(state.status).fields() if state.status is not None else None,
                }
                for state in self.states
            ],
            "failed_notifications": notification_fields(self.failed_notifications),
        }


def notification_lines(failed: Sequence[tuple[str, FailedDelivery]]) -> list[str]:
    """Return a line for each target whose last notification did not arrive."""
    return [
        f"NOT NOTIFIED  {target} of {' '.join(filter(None, (one.event, one.subject, one.instance)))},"
        f" {one.at:%Y-%m-%d %H:%M:%S} UTC: {one.error}"
        for target, one in failed
    ]


def notification_fields(failed: Sequence[tuple[str, FailedDelivery]]) -> list[FailedNotificationFields]:
    """Return the same as JSON fields."""
    return [
        {
            "target": target,
            "at": one.model_dump(mode="json")["at"],
            "event": one.event.value,
            "instance": one.instance,
            "subject": one.subject,
            "error": one.error,
        }
        for target, one in failed
    ]


_LABELS = {Verdict.MET: "met", Verdict.WARNING: "warning", Verdict.BROKEN: "BROKEN"}


def health_lines(health: Health) -> list[str]:
    """Return a line for each objective, with its hint if it is not met."""
    lines = []
    for judgement in health.judgements:
        lines.append(f"{_LABELS[judgement.verdict]:<13} {judgement.name}: {judgement.reason}")
        if judgement.hint:
            lines.append(f"{'':<13} hint: {judgement.hint}")
    return lines


def health_fields(health: Health) -> HealthFields:
    """Return the verdict and the objectives as JSON fields; times in UTC."""
    return {
        "repository": health.facts.repository,
        "verdict": health.verdict.value,
        "objectives": [
            {
                "objective": judgement.objective.value,
                "subject": judgement.subject,
                "verdict": judgement.verdict.value,
                "reason": judgement.reason,
                "hint": judgement.hint,
                "since": judgement.fact.isoformat() if judgement.fact is not None else None,
                "seconds": judgement.seconds,
                "limit_seconds": judgement.limit,
            }
            for judgement in health.judgements
        ],
    }


def window_fields(window: Window) -> WindowFields:
    """Return ranges, gaps, and what is unprotected as JSON fields; times in UTC."""
    end = window.ranges[-1].end if window.ranges else None
    return {
        "recoverable": [
            {
                "from": moment(part.start),
                "to": moment(part.end),
                "backups": list(part.backups),
                "ends": {"kind": part.ends.kind.value, "reason": part.ends.reason},
            }
            for part in window.ranges
        ],
        "gaps": [
            {
                "from": moment(gap.start),
                "to": moment(gap.end),
                "kind": gap.reason.kind.value,
                "reason": gap.reason.reason,
            }
            for gap in window.gaps
        ],
        "unprotected": {
            "since": moment(end) if end is not None else None,
            "kind": window.unprotected.kind.value,
            "reason": window.unprotected.reason,
        }
        if window.unprotected is not None
        else None,
    }
