"""A prune and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.repository.prune import PrunePlan, PruneResult
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class RetentionFields(TypedDict):
    """Whether a backup stays, and why."""

    backup_id: str
    keep: bool
    reasons: list[str]
    stored_bytes: int | None


class LeftoverFields(TypedDict):
    """What is left of a backup that never was whole, or was removed."""

    backup_id: str
    remove: bool
    reason: str
    objects: int
    bytes: int


class LocalLeftoverFields(TypedDict):
    """A dataset or snapshot on this host."""

    name: str
    backup_id: str
    remove: bool
    reason: str
    bytes: int


class PrunedBinlogFields(TypedDict):
    """Whether an archived binlog goes, and why."""

    name: str
    incarnation: str
    remove: bool
    reason: str
    bytes: int


class BinlogLeftoverFields(PrunedBinlogFields):
    """What is left of an archived binlog."""

    objects: int


class BetterCycleFields(TypedDict):
    """How often a full backup would cost less."""

    seconds: float
    backups: int
    bytes: int


class OnlyNeededFields(TypedDict):
    """The backups that stay only because others are increments of them."""

    backups: list[str]
    bytes: int
    full_every: BetterCycleFields | None


class VersionsFields(TypedDict):
    """Whether the bucket keeps old versions, and for how many days. Null: not known."""

    kept: bool | None
    days: int | None


class PrunePlanDocument(TypedDict):
    """What a prune would do. `base` is the backup that the next increment needs."""

    instance: str
    backups: list[RetentionFields]
    leftovers: list[LeftoverFields]
    local: list[LocalLeftoverFields]
    binlogs: list[PrunedBinlogFields]
    binlog_leftovers: list[BinlogLeftoverFields]
    bytes: int
    local_bytes: int
    base: str | None
    only_needed: OnlyNeededFields
    versions: VersionsFields


class PruneDocument(TypedDict):
    """A finished prune."""

    plan: PrunePlanDocument
    removed: list[str]
    swept: list[str]
    destroyed: list[str]
    binlogs: list[str]
    objects: int
    bytes: int
    notes: list[str]


@dataclass(frozen=True)
class PrunePlanView(View):
    """What a prune would do: a line per backup with reasons, the leftovers, the local datasets, and the freed space."""

    plan: PrunePlan
    kind: ClassVar[str] = "prune-plan"

    def text(self) -> str:
        plan = self.plan
        sizes = plan.sizes
        rows = [
            (
                "foreign" if d.backup_id in plan.provenance.foreign else "keep" if d.keep else "remove",
                d.backup_id,
                size(sizes[d.backup_id]) if d.backup_id in sizes else "?",
                "; ".join(d.reasons),
            )
            for d in plan.retention.decisions
        ]
        lines = [table(("", "BACKUP", "STORED", "WHY"), rows)] if rows else ["no backups"]
        if plan.backups.backups and not plan.provenance.knows_any:
            lines += [
                "",
                f"nothing is removed: this host knows no backup; see `zsnapdb adopt {plan.instance} --plan`",
                "if it prunes what another host stores: set signers to what `zsnapdb key show` prints on that host",
            ]
        left = [
            (
                "sweep" if s.remove else "wait",
                s.leftover.backup_id,
                size(s.leftover.size),
                s.reason + _foreign(s.leftover.foreign),
            )
            for s in plan.leftovers
        ]
        left += [
            ("sweep" if s.remove else "wait", s.leftover.name, size(s.leftover.size), s.reason)
            for s in plan.binlog_leftovers
        ]
        if left:
            lines += ["", table(("", "LEFTOVER", "STORED", "WHY"), left)]
        if plan.local:
            here = [("destroy" if d.remove else "keep", d.name, size(d.size), d.reason) for d in plan.local]
            lines += ["", table(("", "ON THIS HOST", "OWN BYTES", "WHY"), here)]
        if plan.binlogs:
            old = [
                (
                    "remove" if b.decision.remove else "keep",
                    b.file.name,
                    b.file.incarnation,
                    size(b.size),
                    b.decision.reason,
                )
                for b in plan.binlogs
            ]
            lines += ["", table(("", "ARCHIVED BINLOG", "INCARNATION", "STORED", "WHY"), old)]
        lines += [
            "",
            (
                f"removes {len(plan.retention.removal_order)} of {len(rows)} backups; frees {size(plan.freed)}"
                f" of objects and {size(plan.freed_locally)} of this pool"
            ),
        ]
        cost = _chain_cost(plan)
        lines += [cost] if cost else []
        note = _afterlife(plan)
        return "\n".join([*lines, note] if note and plan.freed else lines)

    def fields(self) -> PrunePlanDocument:
        return _plan(self.plan)


def _chain_cost(plan: PrunePlan) -> str:
    """Return what the chains cost, in words; empty if no backup stays only as a base."""
    cost = plan.chain_cost
    freed = size(cost.better.freed) if cost.better is not None else ""
    return cost.describe(len(plan.retention.kept), size(cost.size), freed)


def _foreign(count: int) -> str:
    return f"; {count} objects with foreign keys stay" if count else ""


def _afterlife(plan: PrunePlan) -> str:
    """Return a note on how the store treats removed objects; empty if it frees their space at once."""
    if plan.afterlife.keeps_versions is None:
        return (
            "it is not known whether the store keeps old versions of removed objects: the store did not allow reading"
            " this setting"
        )
    if not plan.afterlife.keeps_versions:
        return ""
    if plan.afterlife.days is None:
        return (
            "the bucket keeps old versions, and no known lifecycle rule removes them: space is freed only when somebody"
            " removes the old versions"
        )
    return (
        f"the bucket keeps old versions: its lifecycle rule frees the space {plan.afterlife.days} days after a removal"
    )


def _plan(plan: PrunePlan) -> PrunePlanDocument:
    sizes = plan.sizes
    return {
        "instance": plan.instance,
        "backups": [
            {
                "backup_id": d.backup_id,
                "keep": d.keep,
                "reasons": list(d.reasons),
                "stored_bytes": sizes.get(d.backup_id),
            }
            for d in plan.retention.decisions
        ],
        "leftovers": [
            {
                "backup_id": s.leftover.backup_id,
                "remove": s.remove,
                "reason": s.reason,
                "objects": s.leftover.objects,
                "bytes": s.leftover.size,
            }
            for s in plan.leftovers
        ],
        "local": [
            {"name": d.name, "backup_id": d.backup_id, "remove": d.remove, "reason": d.reason, "bytes": d.size}
            for d in plan.local
        ],
        "binlogs": [
            {
                "name": b.file.name,
                "incarnation": b.file.incarnation,
                "remove": b.decision.remove,
                "reason": b.decision.reason,
                "bytes": b.size,
            }
            for b in plan.binlogs
        ],
        "binlog_leftovers": [
            {
                "name": s.leftover.name,
                "incarnation": s.leftover.incarnation,
                "remove": s.remove,
                "reason": s.reason,
                "objects": len(s.leftover.keys),
                "bytes": s.leftover.size,
            }
            for s in plan.binlog_leftovers
        ],
        "bytes": plan.freed,
        "local_bytes": plan.freed_locally,
        "base": plan.base or None,
        "only_needed": _only_needed(plan),
        "versions": {"kept": plan.afterlife.keeps_versions, "days": plan.afterlife.days},
    }


def _only_needed(plan: PrunePlan) -> OnlyNeededFields:
    cost = plan.chain_cost
    better = cost.better
    return {
        "backups": list(cost.only_needed),
        "bytes": cost.size,
        "full_every": {"seconds": better.every, "backups": better.fewer, "bytes": better.freed} if better else None,
    }


@dataclass(frozen=True)
class PruneView(View):
    """A finished prune."""

    result: PruneResult
    kind: ClassVar[str] = "prune"

    def text(self) -> str:
        result = self.result
        kept = len(result.plan.retention.kept)
        lines = [f"pruned {result.plan.instance}: {len(result.removed)} backups removed, {kept} stay"]
        lines += [f"  removed   {name}" for name in result.removed]
        lines += [f"  swept     {name}" for name in result.swept]
        lines += [f"  destroyed {name}" for name in result.destroyed]
        lines += [f"  binlog    {name}" for name in result.binlogs]
        lines.append(f"  freed     {size(result.size)} in {result.objects} objects")
        cost = _chain_cost(result.plan)
        lines += [f"  note      {text}" for text in (*result.notes, *([cost] if cost else []))]
        note = _afterlife(result.plan)
        return "\n".join([*lines, f"  note      {note}"] if note and result.objects else lines)

    def fields(self) -> PruneDocument:
        result = self.result
        return {
            "plan": _plan(result.plan),
            "removed": list(result.removed),
            "swept": list(result.swept),
            "destroyed": list(result.destroyed),
            "binlogs": list(result.binlogs),
            "objects": result.objects,
            "bytes": result.size,
            "notes": list(result.notes),
        }
