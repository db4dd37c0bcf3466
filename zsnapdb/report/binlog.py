"""The binlog archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.binlog.round import Round
from zsnapdb.planning.binlog.purge import PurgePlan
from zsnapdb.planning.binlog.route import missing_before
from zsnapdb.report.document import ErrorFields, errors_fields
from zsnapdb.report.units import moment, table, to_the_second
from zsnapdb.report.view import View
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile


class UnprotectedFields(TypedDict):
    """Why what the server writes now cannot be restored."""

    kind: str
    reason: str


class RepeatedGtidsFields(TypedDict):
    """GTIDs that an earlier history has as well."""

    history: str
    gtids: str


class ArchivingDocument(TypedDict):
    """A round of binlog archiving."""

    file: str | None
    offset: int | None
    gtids: str | None
    last_commit: str | None
    complete_until: str | None
    transactions: int
    plain_bytes: int
    rotated: list[str]
    begun: str | None
    gaps: list[str]
    unprotected: UnprotectedFields | None
    repeated_gtids: list[RepeatedGtidsFields]
    problems: list[str]


@dataclass(frozen=True)
class ArchivingView(View):
    """The result of one round of binlog archiving."""

    instance: str
    outcome: Round
    kind: ClassVar[str] = "binlog-archive"

    def text(self) -> str:
        outcome = self.outcome
        lines = [
            f"binlogs of {self.instance} are archived"
            + (f" to {outcome.end.file}:{outcome.end.offset}" if outcome.end else ": there is no binlog yet")
        ]
        if outcome.gtids is not None:
            lines.append(f"  gtids     {outcome.gtids}")
        if outcome.last_commit is not None:
            lines.append(f"  newest    {moment(outcome.last_commit)}")
        if outcome.complete_until is not None:
            lines.append(f"  complete  until {moment(outcome.complete_until)}")
        lines.append(
            f"  new       {outcome.transactions} transactions, {size(outcome.plain_size)}"
            + (f"; rotated {', '.join(outcome.rotated)}" if outcome.rotated else "")
        )
        if outcome.new_incarnation:
            lines.append(f"  begun     a new incarnation: {outcome.new_incarnation}")
        lines += [f"  GAP       {gap}" for gap in outcome.gaps]
        if outcome.unprotected is not None:
            lines.append(
                "  needed    a backup: nothing that the server writes now can be restored before it:"
                f" {outcome.unprotected.reason}"
            )
        lines += [f"  REPEATED  {repeated.text}; {repeated.hint}" for repeated in outcome.repeated]
        lines += [f"  left out  {problem}" for problem in outcome.problems]
        return "\n".join(lines)

    def fields(self) -> ArchivingDocument:
        outcome = self.outcome
        return {
            "file": outcome.end.file if outcome.end else None,
            "offset": outcome.end.offset if outcome.end else None,
            "gtids": None if outcome.gtids is None else str(outcome.gtids),
            "last_commit": moment(outcome.last_commit) if outcome.last_commit is not None else None,
            "complete_until": moment(outcome.complete_until) if outcome.complete_until is not None else None,
            "transactions": outcome.transactions,
            "plain_bytes": outcome.plain_size,
            "rotated": list(outcome.rotated),
            "begun": outcome.new_incarnation,
            "gaps": list(outcome.gaps),
            "unprotected": {"kind": outcome.unprotected.kind.value, "reason": outcome.unprotected.reason}
            if outcome.unprotected is not None
            else None,
            "repeated_gtids": [{"history": part.history, "gtids": part.gtids} for part in outcome.repeated],
            "problems": list(outcome.problems),
        }


def gaps_of(files: tuple[ArchivedFile, ...]) -> list[str | None]:
    """Return the gap right before each file of one incarnation; None where there is no gap."""
    before = [None, *files[:-1]] if files else []
    return [missing_before(last, file) if last else file.gap for last, file in zip(before, files, strict=True)]


class ArchivedBinlogFields(TypedDict):
    """An archived binlog. `gap` says what is missing right before it."""

    name: str
    rotated: bool
    segments: int
    bytes: int
    stored_bytes: int
    previous_gtids: str | None
    gtids: str | None
    first_gtid: str | None
    last_gtid: str | None
    transactions: int
    first_commit: str | None
    last_commit: str | None
    exact: bool
    sha256: str | None
    gap: str | None


class IncarnationFields(TypedDict):
    """An incarnation with its archived binlogs."""

    id: str
    flavour: str
    server_uuid: str | None
    server_id: int
    began: str
    reason: str
    files: list[ArchivedBinlogFields]


class BinlogArchiveDocument(TypedDict):
    """The archived binlogs."""

    incarnations: list[IncarnationFields]
    damaged: list[ErrorFields]


@dataclass(frozen=True)
class BinlogArchiveView(View):
    """The archived binlogs, by incarnation."""

    archive: Archive
    kind: ClassVar[str] = "binlogs"

    def text(self) -> str:
        archive = self.archive
        if not archive.incarnations:
            return "no binlogs are archived"
        lines = []
        for incarnation in archive.incarnations:
            server = f"server_id {incarnation.server_id}" + (
                f", server_uuid {incarnation.server_uuid}" if incarnation.server_uuid else ""
            )
            lines += [f"incarnation {incarnation.id} of {incarnation.flavour}: {incarnation.reason}", f"  {server}"]
            files = archive.of(incarnation.id)
            rows = [
                (
                    file.name,
                    "rotated" if file.is_rotated else "active",
                    size(file.end),
                    size(file.stored_size),
                    str(file.span.transactions),
                    to_the_second(file.span.last_commit) if file.span.last_commit is not None else "-",
                )
                for file in files
            ]
            lines.append(table(("BINLOG", "STATE", "BYTES", "STORED", "COMMITS", "LAST COMMIT"), rows))
            lines += [f"GAP before {file.name}: {gap}" for file, gap in zip(files, gaps_of(files), strict=True) if gap]
        lines += [f"damaged: {error.message}" for error in archive.damaged]
        return "\n".join(lines)

    def fields(self) -> BinlogArchiveDocument:
        archive = self.archive
        rows: list[IncarnationFields] = []
        for incarnation in archive.incarnations:
            files = archive.of(incarnation.id)
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
        return {
            "incarnations": rows,
            "damaged": errors_fields(archive.damaged),
        }


def _file(file: ArchivedFile, gap: str | None) -> ArchivedBinlogFields:
    span = file.span
    return {
        "name": file.name,
        "rotated": file.is_rotated,
        "segments": len(file.segments),
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


class PurgeDocument(TypedDict):
    """The binlogs that a purge removes or removed, and which of their archived copies are read before."""

    names: list[str]
    stays: str
    read: list[str]
    warnings: list[str]


@dataclass(frozen=True)
class PurgePlanView(View):
    """What a purge would remove."""

    plan: PurgePlan
    kind: ClassVar[str] = "binlog-purge-plan"
    verb: ClassVar[str] = "would be removed"

    def text(self) -> str:
        names = self.plan.names
        lines = [f"{len(names)} binlogs {self.verb}" + (f": {names[0]} to {names[-1]}" if names else "")]
        if self.plan.unread:
            lines.append(f"  read      the archived copies of {len(self.plan.unread)} of them, before they are removed")
        lines.append(f"  then      {self.plan.stays}")
        return "\n".join([*lines, *(f"  warning   {text}" for text in self.plan.warnings)])

    def fields(self) -> PurgeDocument:
        plan = self.plan
        return {
            "names": list(plan.names),
            "stays": plan.stays,
            "read": list(plan.unread),
            "warnings": list(plan.warnings),
        }


@dataclass(frozen=True)
class PurgeView(PurgePlanView):
    """What a purge has removed."""

    kind: ClassVar[str] = "binlog-purge"
    verb: ClassVar[str] = "removed"
