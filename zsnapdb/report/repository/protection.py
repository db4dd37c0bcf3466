"""Views of the protection of instances: their recoverable points, objectives and notifications."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.quantities import format_duration
from zsnapdb.documents.protection import AllStatusDocument, InstanceStatusFields
from zsnapdb.jobs.repository.protection_status import InstanceStatus, ProtectionStatus
from zsnapdb.planning.binlog.recoverable_ranges import Window
from zsnapdb.planning.binlog.route import EndKind
from zsnapdb.planning.health.notification_events import FailedDelivery
from zsnapdb.planning.health.objectives import Health, Verdict
from zsnapdb.report.view import Labelled, Part, TabularView, missing_lines, moment, spaced

_LABEL_WIDTH = 14
"""The width of the labels in a status."""


def window_lines(window: Window) -> list[str]:
    """Return a line for each range and gap, in chronological order.

    If the newest state cannot be restored, the last line gives the reason.
    """
    lines = []
    for number, part in enumerate(window.ranges):
        backups = f"{len(part.backups)} backups" if len(part.backups) > 1 else f"backup {part.backups[0]}"
        if part.end == part.start:
            lines.append(f"recoverable   {moment(part.start)}, {backups} alone")
        else:
            lines.append(f"recoverable   {moment(part.start)} to {moment(part.end)}, {backups}")
        if number < len(window.gaps):
            gap = window.gaps[number]
            # The archive may only be late, or a rewind left these transactions out.
            label = "not archived" if gap.reason.kind is EndKind.NEWEST else "GAP"
            lines.append(f"{label:<{_LABEL_WIDTH}}{moment(gap.start)} to {moment(gap.end)}: {gap.reason.reason}")
        elif window.unprotected is None and part.ends.kind not in (EndKind.NEWEST, EndKind.NO_ARCHIVE):
            lines.append(f"ENDS          {moment(part.end)}: {part.ends.reason}")
    if window.ranges and window.unprotected is not None:
        end = moment(window.ranges[-1].end)
        reason = window.unprotected.reason
        lines.append(f"UNPROTECTED   nothing later than {end} can be restored before the next backup: {reason}")
    return lines or ["recoverable   nothing: there is no backup that can be restored"]


def _machine_lines(backups: Sequence[str]) -> list[str]:
    """Return a line about a machine's restorable backups. Unlike a server, a machine has no points between backups."""
    if not backups:
        return []
    span = backups[0] if len(backups) == 1 else f"{backups[0]} to {backups[-1]}"
    return [f"recoverable   {len(backups)} backup(s) of a virtual machine, {span}"]


class StatusView(TabularView, kind="status", document=InstanceStatusFields):
    """The protection of an instance."""

    status: ProtectionStatus
    failed_notifications: Sequence[tuple[str, FailedDelivery]] = ()

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


class AllStatusView(TabularView, kind="status-all", document=AllStatusDocument):
    """The protection of several instances."""

    states: Sequence[InstanceStatus]
    failed_notifications: Sequence[tuple[str, FailedDelivery]] = ()

    def parts(self) -> Sequence[Part]:
        blocks = [
            StatusView(state.status).parts()
            if state.status is not None
            else [
                Labelled.at(
                    [f"instance      {state.instance}", f"UNKNOWN       {state.error or 'the state was not read'}"],
                    _LABEL_WIDTH,
                )
            ]
            for state in self.states
        ]
        failed = notification_lines(self.failed_notifications)
        return spaced([*blocks, [Labelled.at(failed, _LABEL_WIDTH)]] if failed else blocks)


def notification_lines(failed: Sequence[tuple[str, FailedDelivery]]) -> list[str]:
    """Return a line for each target whose last notification did not arrive."""
    return [
        f"NOT NOTIFIED  {target} of {' '.join(filter(None, (one.event, one.subject, one.instance)))},"
        f" {one.at:%Y-%m-%d %H:%M:%S} UTC: {one.error}"
        for target, one in failed
    ]


_LABELS = {Verdict.MET: "met", Verdict.WARNING: "warning", Verdict.BROKEN: "BROKEN"}


def health_lines(health: Health) -> list[str]:
    """Return a line for each objective, and the hint of each objective that is not met."""
    lines = []
    for judgement in health.judgements:
        lines.append(f"{_LABELS[judgement.verdict]:<13} {judgement.name}: {judgement.reason}")
        if judgement.hint:
            lines.append(f"{'':<13} hint: {judgement.hint}")
    return lines
