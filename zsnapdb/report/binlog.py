"""The binlog archive as text and JSON."""

from __future__ import annotations

from zsnapdb.jobs.binlog.archiver import Round
from zsnapdb.planning.binlog.purge import PurgePlan
from zsnapdb.planning.binlog.route import missing_before
from zsnapdb.report.document import document
from zsnapdb.report.units import moment, size, table
from zsnapdb.repository.binlog_archive import Archive
from zsnapdb.repository.binlogs import ArchivedFile


def round_text(instance: str, found: Round) -> str:
    """What one look at the server's binlogs came to."""
    lines = [
        f"binlogs of {instance} are archived"
        + (f" to {found.end.file}:{found.end.offset}" if found.end else ": there are none yet")
    ]
    if found.gtids is not None:
        lines.append(f"  gtids     {found.gtids}")
    if found.last_commit is not None:
        lines.append(f"  newest    {moment(found.last_commit)}")
    lines.append(
        f"  new       {found.transactions} transactions, {size(found.plain_size)}"
        + (f"; sealed {', '.join(found.sealed)}" if found.sealed else "")
    )
    if found.begun:
        lines.append(f"  begun     a new incarnation: {found.begun}")
    lines += [f"  GAP       {gap}" for gap in found.gaps]
    lines += [f"  left out  {problem}" for problem in found.problems]
    return "\n".join(lines)


def round_json(found: Round) -> str:
    """What one look at the server's binlogs came to."""
    return document(
        "binlog-archive",
        file=found.end.file if found.end else None,
        offset=found.end.offset if found.end else None,
        gtids=None if found.gtids is None else str(found.gtids),
        last_commit=moment(found.last_commit) if found.last_commit is not None else None,
        transactions=found.transactions,
        plain_bytes=found.plain_size,
        sealed=list(found.sealed),
        begun=found.begun,
        gaps=list(found.gaps),
        problems=list(found.problems),
    )


def gaps_of(files: tuple[ArchivedFile, ...]) -> list[str | None]:
    """Return, per file of one incarnation, what is missing right before it; None where nothing is."""
    before = [None, *files[:-1]] if files else []
    return [missing_before(last, file) if last else file.gap for last, file in zip(before, files, strict=True)]


def archive_text(found: Archive) -> str:
    """What is archived, a history after the other."""
    if not found.incarnations:
        return "no binlogs are archived"
    lines = []
    for incarnation in found.incarnations:
        server = f"server_id {incarnation.server_id}" + (
            f", server_uuid {incarnation.server_uuid}" if incarnation.server_uuid else ""
        )
        lines.append(f"incarnation {incarnation.id} of {incarnation.flavour}, {server}: {incarnation.reason}")
        files = found.of(incarnation.id)
        rows = [
            (
                file.name,
                "sealed" if file.is_sealed else f"growing, {len(file.segments)} pieces",
                size(file.end),
                size(file.stored_size),
                str(file.span.transactions),
                moment(file.span.first_commit) if file.span.first_commit is not None else "-",
                moment(file.span.last_commit) if file.span.last_commit is not None else "-",
            )
            for file in files
        ]
        lines.append(table(("BINLOG", "STATE", "BYTES", "STORED", "TRANSACTIONS", "FIRST COMMIT", "LAST COMMIT"), rows))
        lines += [f"GAP before {file.name}: {gap}" for file, gap in zip(files, gaps_of(files), strict=True) if gap]
    lines += [f"damaged: {error.message}" for error in found.damaged]
    return "\n".join(lines)


def archive_json(found: Archive) -> str:
    """What is archived."""
    rows = []
    for incarnation in found.incarnations:
        files = found.of(incarnation.id)
        rows.append(
            {
                "id": incarnation.id,
                "flavour": incarnation.flavour.value,
                "server_uuid": incarnation.server_uuid,
                "server_id": incarnation.server_id,
                "began": incarnation.began.isoformat(),
                "reason": incarnation.reason,
                "files": [_file(file, gap) for file, gap in zip(files, gaps_of(files), strict=True)],
            }
        )
    return document(
        "binlogs",
        incarnations=rows,
        damaged=[{"code": e.code, "message": e.message, "hint": e.hint} for e in found.damaged],
    )


def _file(file: ArchivedFile, gap: str | None) -> dict[str, object]:
    span = file.span
    return {
        "name": file.name,
        "sealed": file.is_sealed,
        "pieces": len(file.segments),
        "bytes": file.end,
        "stored_bytes": file.stored_size,
        "previous_gtids": file.head.previous_gtids,
        "gtids": span.gtids,
        "first_gtid": span.first_gtid,
        "last_gtid": span.last_gtid,
        "transactions": span.transactions,
        "first_commit": moment(span.first_commit) if span.first_commit is not None else None,
        "last_commit": moment(span.last_commit) if span.last_commit is not None else None,
        "exact": span.is_exact,
        "sha256": file.sha256 or None,
        "gap": gap,
    }


def purge_text(found: PurgePlan, *, done: bool) -> str:
    """What a purge would remove, or has removed."""
    verb = "removed" if done else "would be removed"
    lines = [f"{len(found.names)} binlogs {verb}" + (f": {found.names[0]} to {found.names[-1]}" if found.names else "")]
    return "\n".join([*lines, f"  then      {found.stays}", *(f"  warning   {text}" for text in found.warnings)])


def purge_json(found: PurgePlan, *, done: bool) -> str:
    """What a purge would remove, or has removed."""
    return document(
        "binlog-purge" if done else "binlog-purge-plan",
        names=list(found.names),
        stays=found.stays,
        warnings=list(found.warnings),
    )
