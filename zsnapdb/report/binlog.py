"""The binlog archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zsnapdb.base.quantities import size
from zsnapdb.documents.binlog import ArchivingDocument, BinlogArchiveDocument, PurgeDocument
from zsnapdb.jobs.binlog.round import Round
from zsnapdb.planning.binlog.purge import PurgePlan
from zsnapdb.planning.binlog.route import missing_before
from zsnapdb.report.units import moment, table, to_the_second
from zsnapdb.report.view import View
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Incarnation


@dataclass(frozen=True)
class ArchivingView(View):
    """The result of one round of binlog archiving."""

    instance: str
    outcome: Round
    kind: ClassVar[str] = "binlog-archive"
    document_class = ArchivingDocument
    read_from = "outcome"

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


class PlacedBinlog(NamedTuple):
    """An archived binlog, and what is missing right before it (None: nothing)."""

    file: ArchivedFile
    gap: str | None


class ShownHistory(NamedTuple):
    """An incarnation with its archived binlogs."""

    incarnation: Incarnation
    files: Sequence[PlacedBinlog]


def _placed(files: Sequence[ArchivedFile]) -> list[PlacedBinlog]:
    before = [None, *files[:-1]] if files else []
    gaps = (missing_before(last, file) if last else file.gap for last, file in zip(before, files, strict=True))
    return list(map(PlacedBinlog, files, gaps))


@dataclass(frozen=True)
class BinlogArchiveView(View):
    """The archived binlogs, by incarnation."""

    archive: Archive
    kind: ClassVar[str] = "binlogs"
    document_class = BinlogArchiveDocument

    def text(self) -> str:
        if not self.archive.incarnations:
            return "no binlogs are archived"
        lines = []
        for incarnation, files in self.histories:
            server = f"server_id {incarnation.server_id}" + (
                f", server_uuid {incarnation.server_uuid}" if incarnation.server_uuid else ""
            )
            lines += [f"incarnation {incarnation.id} of {incarnation.flavour}: {incarnation.reason}", f"  {server}"]
            rows = [
                (
                    file.name,
                    "rotated" if file.is_rotated else "active",
                    size(file.end),
                    size(file.stored_size),
                    str(file.span.transactions),
                    to_the_second(file.span.last_commit) if file.span.last_commit is not None else "-",
                )
                for file, _ in files
            ]
            lines.append(table(("BINLOG", "STATE", "BYTES", "STORED", "COMMITS", "LAST COMMIT"), rows))
            lines += [f"GAP before {file.name}: {gap}" for file, gap in files if gap]
        lines += [f"damaged: {error.message}" for error in self.archive.damaged]
        return "\n".join(lines)

    @property
    def histories(self) -> Sequence[ShownHistory]:
        """The incarnations, oldest first."""
        archive = self.archive
        return [ShownHistory(one, _placed(archive.of(one.id))) for one in archive.incarnations]


@dataclass(frozen=True)
class PurgePlanView(View):
    """What a purge would remove."""

    plan: PurgePlan
    kind: ClassVar[str] = "binlog-purge-plan"
    document_class = PurgeDocument
    read_from = "plan"
    verb: ClassVar[str] = "would be removed"

    def text(self) -> str:
        names = self.plan.names
        lines = [f"{len(names)} binlogs {self.verb}" + (f": {names[0]} to {names[-1]}" if names else "")]
        if self.plan.unread:
            lines.append(f"  read      the archived copies of {len(self.plan.unread)} of them, before they are removed")
        lines.append(f"  then      {self.plan.stays}")
        return "\n".join([*lines, *(f"  warning   {text}" for text in self.plan.warnings)])


@dataclass(frozen=True)
class PurgeView(PurgePlanView):
    """What a purge has removed."""

    kind: ClassVar[str] = "binlog-purge"
    verb: ClassVar[str] = "removed"
