"""Foreign backups, and those that a host adopts."""

from __future__ import annotations

from zsnapdb.documents.repository import AdoptDocument
from zsnapdb.jobs.repository.adopt import AdoptPlan
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class AdoptView(View, kind="adopt", document=AdoptDocument):
    """The foreign backups with what is known of them, and what is adopted, or would be."""

    plan: AdoptPlan
    is_planned: bool = False

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
