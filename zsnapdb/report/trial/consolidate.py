"""A consolidation and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.trial.consolidate import ConsolidatePlan, ConsolidateResult
from zsnapdb.report.findings import FindingFields, finding_fields, finding_lines
from zsnapdb.report.manifest import ManifestFields, manifest_fields
from zsnapdb.report.view import View


class ConsolidatePlanDocument(TypedDict):
    """What a consolidation would do. `chain`: the backups to receive, the full one first. Bytes are of that chain."""

    instance: str
    original: str
    chain: list[str]
    dataset: str
    plain_bytes: int
    stored_bytes: int
    reasons: list[str]
    findings: list[FindingFields]


class ConsolidateDocument(TypedDict):
    """A finished consolidation. `original`: the backup with the same snapshots, the last one of `chain`."""

    backup: ManifestFields
    original: str
    chain: list[str]
    receive_seconds: float
    send_seconds: float


@dataclass(frozen=True)
class ConsolidatePlanView(View):
    """What a consolidation would do."""

    plan: ConsolidatePlan
    kind: ClassVar[str] = "consolidate-plan"

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

    def fields(self) -> ConsolidatePlanDocument:
        plan = self.plan
        return {
            "instance": plan.instance,
            "original": plan.original.backup_id,
            "chain": [manifest.backup_id for manifest in plan.chain],
            "dataset": plan.place.container,
            "plain_bytes": sum(manifest.plain_size for manifest in plan.chain),
            "stored_bytes": sum(manifest.stored_size for manifest in plan.chain),
            "reasons": list(plan.reasons),
            "findings": finding_fields(plan.findings),
        }


@dataclass(frozen=True)
class ConsolidateView(View):
    """A finished consolidation."""

    result: ConsolidateResult
    kind: ClassVar[str] = "consolidated"

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

    def fields(self) -> ConsolidateDocument:
        result = self.result
        return {
            "backup": manifest_fields(result.manifest),
            "original": result.plan.original.backup_id,
            "chain": [manifest.backup_id for manifest in result.plan.chain],
            "receive_seconds": result.receive_seconds,
            "send_seconds": result.send_seconds,
        }
