"""The state of protection of an instance as text and JSON."""

from __future__ import annotations

from zsnapdb.jobs.repository.status import ProtectionStatus
from zsnapdb.planning.binlog.route import EndKind
from zsnapdb.planning.binlog.window import Window
from zsnapdb.report.document import document
from zsnapdb.report.units import duration, moment


def window_lines(found: Window) -> list[str]:
    """A line per range and gap, in the order of time, and why the last range ends where something ended it."""
    lines = []
    for number, part in enumerate(found.ranges):
        backups = f"{len(part.backups)} backups" if len(part.backups) > 1 else f"backup {part.backups[0]}"
        if part.end == part.start:
            lines.append(f"recoverable   {moment(part.start)}, {backups} alone")
        else:
            lines.append(f"recoverable   {moment(part.start)} to {moment(part.end)}, {backups}")
        if number < len(found.gaps):
            gap = found.gaps[number]
            lines.append(f"GAP           {moment(gap.start)} to {moment(gap.end)}: {gap.reason.reason}")
        elif part.ends.kind not in (EndKind.NEWEST, EndKind.NO_ARCHIVE):
            lines.append(f"ENDS          {moment(part.end)}: {part.ends.reason}")
    return lines or ["recoverable   nothing: there is no backup"]


def status_text(found: ProtectionStatus) -> str:
    """The state of protection."""
    lines = [f"instance      {found.instance}", *window_lines(found.window)]
    if found.newest is not None and found.backup_age is not None:
        lines.append(f"last backup   {found.newest.backup_id}, {duration(found.backup_age)} ago")
    else:
        lines.append("last backup   none")
    if found.last is not None and found.last.last_commit is not None and found.archive_lag is not None:
        lines.append(
            f"last binlog   {found.last.name}:{found.last.end}, {found.last.span.last_gtid or 'without GTIDs'}"
        )
        lines.append(f"last commit   {moment(found.last.last_commit)}, {duration(found.archive_lag)} ago")
    else:
        lines.append("last binlog   none is archived")
    if found.drill is not None:
        lines.append(f"last drill    {found.drill.drill_id} of {found.drill.backup_id}: {found.drill.outcome}")
    else:
        lines.append("last drill    none")
    return "\n".join([*lines, *(f"damaged       {error.message}" for error in found.damaged)])


def window_fields(found: Window) -> dict[str, object]:
    """Ranges and gaps as JSON fields; times in UTC."""
    return {
        "recoverable": [
            {
                "from": moment(part.start),
                "to": moment(part.end),
                "backups": list(part.backups),
                "ends": {"kind": part.ends.kind.value, "reason": part.ends.reason},
            }
            for part in found.ranges
        ],
        "gaps": [
            {
                "from": moment(gap.start),
                "to": moment(gap.end),
                "kind": gap.reason.kind.value,
                "reason": gap.reason.reason,
            }
            for gap in found.gaps
        ],
    }


def status_json(found: ProtectionStatus) -> str:
    """The state of protection; ages and lags in seconds."""
    last, tried = found.last, found.drill
    return document(
        "status",
        instance=found.instance,
        at=found.at.isoformat(),
        **window_fields(found.window),
        backup={"backup_id": found.newest.backup_id, "age_seconds": found.backup_age} if found.newest else None,
        binlog=(
            {
                "file": last.name,
                "offset": last.end,
                "gtid": last.span.last_gtid,
                "last_commit": moment(last.last_commit) if last.last_commit is not None else None,
                "lag_seconds": found.archive_lag,
            }
            if last
            else None
        ),
        drill=(
            {
                "drill_id": tried.drill_id,
                "backup_id": tried.backup_id,
                "finished": tried.finished.isoformat(),
                "outcome": tried.outcome.value,
            }
            if tried
            else None
        ),
        damaged=[{"code": error.code, "message": error.message, "hint": error.hint} for error in found.damaged],
    )
