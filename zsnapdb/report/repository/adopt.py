"""Foreign backups, and those that a host adopts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.repository.adopt import AdoptPlan
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class CandidateFields(TypedDict):
    """A foreign backup. `objection`: why it is adopted only by its id, or not at all."""

    backup_id: str
    adopted: bool
    why_foreign: str
    facts: list[str]
    objection: str | None


class AdoptDocument(TypedDict):
    """The foreign backups and binlogs, and with `planned` what would be adopted.

    `documents` counts the small documents by kind: drills, checks, pins, marks, and parts of the archive.
    """

    instance: str
    backups: list[CandidateFields]
    binlogs: list[str]
    damaged_binlogs: list[str]
    documents: dict[str, int]
    planned: bool


@dataclass(frozen=True)
class AdoptView(View):
    """The foreign backups with what is known of them, and what is adopted, or would be."""

    plan: AdoptPlan
    is_planned: bool = False
    kind: ClassVar[str] = "adopt"

    def text(self) -> str:
        plan = self.plan
        if not plan.candidates and plan.is_empty:
            return f"this host knows every readable backup of {plan.instance}; there is nothing to adopt"
        adopted = {backup.backup_id for backup in plan.adopted}
        word = "adopt" if self.is_planned else "adopted"
        rows = [
            (
                word if one.backup.backup_id in adopted else "no",
                one.backup.backup_id,
                "; ".join((one.why_foreign, *one.facts, *([one.objection] if one.objection else []))),
            )
            for one in plan.candidates
        ]
        lines = [table(("", "BACKUP", "KNOWN OF IT"), rows)] if rows else []
        if plan.binlogs:
            lines.append(f"{word}: {len(plan.binlogs)} archived binlogs, {plan.binlogs[0].name} the first")
        lines += [f"{word}: {kind}: {len(digests)}" for kind, digests in sorted(plan.documents.items())]
        lines += [f"no: binlog {name}: its archived copy is not whole" for name in plan.damaged]
        if self.is_planned:
            lines.append("what is adopted counts for the retention policy, and `zsnapdb prune` may remove it")
        return "\n".join(lines)

    def fields(self) -> AdoptDocument:
        adopted = {backup.backup_id for backup in self.plan.adopted}
        return {
            "instance": self.plan.instance,
            "backups": [
                {
                    "backup_id": one.backup.backup_id,
                    "adopted": one.backup.backup_id in adopted,
                    "why_foreign": one.why_foreign,
                    "facts": list(one.facts),
                    "objection": one.objection or None,
                }
                for one in self.plan.candidates
            ],
            "binlogs": [f"{file.incarnation}/{file.name}" for file in self.plan.binlogs],
            "damaged_binlogs": list(self.plan.damaged),
            "documents": {kind: len(digests) for kind, digests in sorted(self.plan.documents.items())},
            "planned": self.is_planned,
        }
