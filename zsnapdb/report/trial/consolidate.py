"""A consolidation and its plan."""

from __future__ import annotations

from zsnapdb.base.quantities import size
from zsnapdb.documents.trial import ConsolidateDocument, ConsolidatePlanDocument
from zsnapdb.jobs.trial.consolidate import ConsolidatePlan, ConsolidateResult
from zsnapdb.report.view import View, finding_lines


class ConsolidatePlanView(View, kind="consolidate-plan", document=ConsolidatePlanDocument, read_from="plan"):
    """What a consolidation would do."""

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


class ConsolidateView(View, kind="consolidated", document=ConsolidateDocument, read_from="result"):
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
