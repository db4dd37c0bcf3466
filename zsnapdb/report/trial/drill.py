"""Drills."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from zsnapdb.base.quantities import size
from zsnapdb.documents.trial import DrillDocument, DrillPlanDocument, DrillsDocument, MachineDrillPlanDocument
from zsnapdb.jobs.trial.drill import BOOT, DrillPlan, DrillResult
from zsnapdb.jobs.trial.machine_drill import MachineDrillPlan
from zsnapdb.report.view import Part, Table, TabularView, View
from zsnapdb.repository.drills import Evidence, Outcome


class DrillPlanView(View, kind="drill-plan", document=DrillPlanDocument, read_from="plan"):
    """What a drill would do."""

    plan: DrillPlan

    def text(self) -> str:
        plan = self.plan
        part = "all" if plan.budget is None else f"about {size(plan.budget)}"
        what = plan.restore
        lines = [
            (
                f"drill {what.instance} at {plan.requested} (backup {what.backup_id}) in {plan.place.container}, seed"
                f" {plan.seed}"
            )
        ]
        steps = [step.describe() for step in what.steps]
        steps += [
            (
                f"check the checksums of {part} of its pages with {plan.innochecksum}"
                if plan.innochecksum is not None
                else "leave out the checksums of pages: this host has no innochecksum"
            ),
            "start the server again without network, replication and events",
            f"CHECK TABLE of {part} of its tables",
            f"run {plan.probes} configured probe(s)",
            f"write the evidence to the repository, stop the server, destroy {plan.place.container}",
        ]
        return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


class EvidenceView(View, kind="drill", document=DrillDocument):
    """One drill: its verdict, its steps, the number of passed checks, and each check that did not pass."""

    evidence: Evidence

    def text(self) -> str:
        evidence = self.evidence
        lines = [
            (
                f"drill {evidence.drill_id} of backup {evidence.backup_id} of {evidence.instance}:"
                f" {evidence.outcome.value}"
            ),
            (
                f"  made      {evidence.started:%Y-%m-%d %H:%M:%S} UTC on {evidence.host} by zsnapdb"
                f" {evidence.tool_version}, {evidence.seconds:.1f} s, seed {evidence.seed}"
            ),
            f"  server    {evidence.server_version or 'none was asked'}",
        ]
        if evidence.position:
            lines.append(f"  position  {evidence.position}")
        lines += [
            f"  step      {step.seconds:8.1f} s  {step.kind}: {step.what}"
            + (f", {size(step.size)}" if step.size else "")
            for step in evidence.steps
        ]
        lines += _passed(evidence)
        lines += [
            f"  {check.outcome.value:<9} {check.kind} {check.what}: {check.finding}"
            for check in evidence.checks
            if check.outcome is not Outcome.PASSED
        ]
        lines += [f"  note      {note}" for note in evidence.notes]
        return "\n".join(lines)


def _passed(evidence: Evidence) -> list[str]:
    """Return the number of checks that passed by kind; of a machine the findings of those that are not tables."""
    good = [check for check in evidence.checks if check.outcome is Outcome.PASSED]
    is_machine = any(check.kind == BOOT for check in evidence.checks)
    one_by_one = [check for check in good if is_machine and check.kind != "table"]
    counts = Counter(check.kind for check in good if check not in one_by_one)
    return [
        *(f"  passed    {check.kind}: {check.finding}" for check in one_by_one),
        *(f"  passed    {count:5d}  {kind}" for kind, count in sorted(counts.items())),
    ]


class DrillView(View, kind="drill", document=DrillDocument, read_from="result"):
    """A drill that has just finished."""

    result: DrillResult

    def text(self) -> str:
        return f"{EvidenceView(self.result.evidence).text()}\n  evidence  {self.result.key}"


class DrillsView(TabularView, kind="drills", document=DrillsDocument):
    """Drills, oldest first."""

    drills: Sequence[Evidence]

    def parts(self) -> Sequence[Part]:
        rows = [(e.drill_id, e.backup_id, e.outcome.value, f"{e.seconds:.0f} s", e.host) for e in self.drills]
        return [Table(("DRILL", "BACKUP", "OUTCOME", "TOOK", "HOST"), rows, "no drills: `zsnapdb drill` makes one")]


class MachineDrillPlanView(View, kind="machine-drill-plan", document=MachineDrillPlanDocument, read_from="plan"):
    """What a drill of a virtual machine would do."""

    plan: MachineDrillPlan

    def text(self) -> str:
        plan, restore = self.plan, self.plan.restore
        steps = [
            *(step.describe() for step in restore.steps),
            f"start {plan.define.domain} without a network, and wait up to {plan.patience:g} s for its guest agent",
            *self._questions(),
            f"write the evidence to the repository, remove {plan.define.domain}, destroy {plan.place.container}",
        ]
        return "\n".join(
            [
                (
                    f"drill {restore.instance} at {plan.requested} (backup {restore.backup_id}) in"
                    f" {plan.place.container}, seed {plan.seed}"
                ),
                f"  grade     {restore.grade}: {restore.grade_reason}",
                *(f"  note      {note}" for note in restore.notes),
                *(f"  {number}. {step}" for number, step in enumerate(steps, 1)),
            ]
        )

    def _questions(self) -> list[str]:
        plan = self.plan
        if plan.client is None:
            return []
        part = "all" if plan.budget is None else f"about {size(plan.budget)}"
        return [
            f"ask its server: {shlex.join(plan.client)}; compare its position",
            f"CHECK TABLE of {part} of its tables",
            f"run {len(plan.probes)} configured probe(s)",
        ]
