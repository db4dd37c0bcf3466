"""Views of drills, rescues and consolidations, and of their plans."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.base.quantities import size
from zsnapdb.documents import restore as documents
from zsnapdb.jobs.trial.drill import BOOT, DrillPlan, DrillResult
from zsnapdb.planning.trial.rescue import DumpFile, event_commands, loading_commands
from zsnapdb.report.restore import point_lines
from zsnapdb.report.view import Part, Table, TabularView, View, finding_lines
from zsnapdb.repository.drills import Evidence, Outcome

if TYPE_CHECKING:
    from zsnapdb.jobs.trial.consolidate import ConsolidatePlan, ConsolidateResult
    from zsnapdb.jobs.trial.machine_drill import MachineDrillPlan
    from zsnapdb.jobs.trial.rescue import RescuePlan, RescueResult


class DrillPlanView(View, kind="drill-plan", document=documents.DrillPlanDocument, read_from="plan"):
    """The plan of a drill."""

    plan: DrillPlan

    def text(self) -> str:
        plan = self.plan
        part = "all" if plan.budget is None else f"about {size(plan.budget)}"
        what = plan.restore
        lines = [
            (
                f"drill {what.instance} at {plan.requested} (backup {what.backup_id}) in {plan.place.container},"
                f" random seed {plan.seed}"
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


class EvidenceView(View, kind="drill", document=documents.DrillDocument):
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
                f" {evidence.tool_version}, {evidence.seconds:.1f} s, random seed {evidence.seed}"
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
    """Return the number of passed checks of each kind. For a machine, add the findings that are not about tables."""
    good = [check for check in evidence.checks if check.outcome is Outcome.PASSED]
    is_machine = any(check.kind == BOOT for check in evidence.checks)
    one_by_one = [check for check in good if is_machine and check.kind != "table"]
    counts = Counter(check.kind for check in good if check not in one_by_one)
    return [
        *(f"  passed    {check.kind}: {check.finding}" for check in one_by_one),
        *(f"  passed    {count:5d}  {kind}" for kind, count in sorted(counts.items())),
    ]


class DrillView(View, kind="drill", document=documents.DrillDocument, read_from="result"):
    """A drill that has just finished."""

    result: DrillResult

    def text(self) -> str:
        return f"{EvidenceView(self.result.evidence).text()}\n  evidence  {self.result.key}"


class DrillsView(TabularView, kind="drills", document=documents.DrillsDocument):
    """Drills, oldest first."""

    drills: Sequence[Evidence]

    def parts(self) -> Sequence[Part]:
        rows = [(e.drill_id, e.backup_id, e.outcome.value, f"{e.seconds:.0f} s", e.host) for e in self.drills]
        return [Table(("DRILL", "BACKUP", "OUTCOME", "TOOK", "HOST"), rows, "no drills: `zsnapdb drill` makes one")]


class MachineDrillPlanView(
    View, kind="machine-drill-plan", document=documents.MachineDrillPlanDocument, read_from="plan"
):
    """The plan of a virtual machine's drill."""

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
                    f" {plan.place.container}, random seed {plan.seed}"
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


class ConsolidatePlanView(View, kind="consolidate-plan", document=documents.ConsolidatePlanDocument, read_from="plan"):
    """The plan of a consolidation."""

    plan: ConsolidatePlan

    def text(self) -> str:
        plan = self.plan
        roles = ", ".join(volume.role for volume in plan.original.volumes)
        steps = [
            *(step.describe() for step in plan.receives),
            f"store a full stream of each received volume ({roles}) as a new backup",
            f"destroy {plan.place.container}",
            "write the manifest of the new backup, as the only writer of the instance",
        ]
        return "\n".join(
            [
                f"consolidate {plan.instance} at {plan.original.backup_id} in {plan.place.container}",
                *(f"  because   {reason}" for reason in plan.reasons),
                f"  fetches   {size(sum(one.stored_size for one in plan.chain))} of {len(plan.chain)} backups",
                *(f"  {line}" for line in finding_lines(plan.findings)),
                *(f"  {number}. {step}" for number, step in enumerate(steps, 1)),
            ]
        )


class ConsolidateView(View, kind="consolidated", document=documents.ConsolidateDocument, read_from="result"):
    """A finished consolidation."""

    result: ConsolidateResult

    def text(self) -> str:
        result, made = self.result, self.result.manifest
        chain = " -> ".join(manifest.backup_id for manifest in result.plan.chain)
        return "\n".join(
            [
                f"{made.backup_id} is a full backup with the snapshots of {result.plan.original.backup_id}",
                f"  from      {chain}",
                f"  stored    {size(made.stored_size)}, a stream of {size(made.plain_size)}",
                f"  took      {result.receive_seconds:.1f} s to receive, {result.send_seconds:.1f} s to send",
            ]
        )


class RescuePlanView(View, kind="rescue-plan", document=documents.RescueFields):
    """The plan of a rescue."""

    plan: RescuePlan

    def text(self) -> str:
        plan = self.plan
        subject, file = plan.request.original, isinstance(plan.request.destination.where, DumpFile)
        gtids = plan.restore.point.gtids
        proof = f"its GTIDs must be exactly {gtids}" if gtids is not None else "the point has no GTIDs to compare"
        steps = [
            f"{plan.way}, {plan.restore.backup_id}, in {plan.place.container}",
            f"start a server on it without network, replication and events; {proof}",
            (
                f"dump {subject} with {plan.tools.dump} to {plan.into}"
                if file
                else f"put {subject} into {plan.into}, and count its rows"
            ),
            f"stop the server, destroy {plan.place.container}",
        ]
        if plan.restore.replays:
            steps.insert(1, "replay the archived binlogs after the backup, up to the point")
        lines = [f"rescue {subject} of {_as_of(plan)}", *point_lines(plan.restore.requested, plan.restore.point)]
        return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


def _as_of(planned: RescuePlan) -> str:
    restore = planned.restore
    return (
        f"{restore.instance} as of {restore.requested}, from backup {restore.backup_id}"
        if restore.replays
        else f"{restore.instance} as of {restore.backup_id}"
    )


class RescueView(View, kind="rescue", document=documents.RescueDocument, read_from="result"):
    """A finished rescue."""

    result: RescueResult

    def text(self) -> str:
        result = self.result
        delivery = result.delivered
        return "\n".join(
            [
                f"{result.plan.request.original} of {_as_of(result.plan)} is in {delivery.where}",
                f"  from      {result.plan.way}",
                f"  by        {delivery.choice.transport.value}: {delivery.choice.reason}",
                *(f"  rows      {count} in {table}" for table, count in delivery.rows),
                *(f"  left out  {what}" for what in delivery.left_out),
                (
                    f"  took      {result.server_seconds:.1f} s until the server answered,"
                    f" {result.delivery_seconds:.1f} s to deliver"
                ),
                *self._loading(),
            ]
        )

    def _loading(self) -> list[str]:
        """Return instructions for loading a dump file into a server, and for the events that the dump lacks."""
        plan, delivered = self.result.plan, self.result.delivered
        where, original = plan.request.destination.where, plan.request.original
        if not isinstance(where, DumpFile):
            return []
        loading, why = loading_commands(original, str(plan.tools.client), where.path, delivered.charset)
        restore = plan.restore
        events = event_commands(restore.instance, restore.requested, original.schema, delivered.hidden_events)
        return [
            f"  to load   {why}",
            f"            {'; '.join(loading)}",
            *(["  events    a clone of the same point prints their statements:"] if events else []),
            *(f"            {command}" for command in events),
        ]
