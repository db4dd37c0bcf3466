"""Views of prunes, copies and verifications, and of their plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zsnapdb.base.quantities import size
from zsnapdb.documents.repository import (
    CopyDocument,
    CopyPlanDocument,
    PruneDocument,
    PrunePlanDocument,
    VerifyDocument,
    VerifyPlanDocument,
)
from zsnapdb.jobs.repository.copy import CopyPlan, CopyResult
from zsnapdb.jobs.repository.prune import PrunePlan, PruneResult
from zsnapdb.jobs.repository.prune_facts import OldBinlog
from zsnapdb.jobs.repository.verify import VerifyPlan, VerifyResult
from zsnapdb.report.view import View, missing_lines, table
from zsnapdb.repository.verifications import Depth


class PrunePlanView(View, kind="prune-plan", document=PrunePlanDocument, read_from="plan"):
    """The plan of a prune: backups with reasons, leftovers, local datasets, and the space that the prune frees."""

    plan: PrunePlan

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
            lines += ["", table(("", "ARCHIVED BINLOG", "INCARNATION", "STORED", "WHY"), binlog_rows(plan.binlogs))]
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


def binlog_rows(binlogs: Sequence[OldBinlog]) -> list[tuple[str, ...]]:
    """Return the rows of a table. Successive binlogs with the same decision share a row: there may be thousands."""
    rows: list[tuple[str, ...]] = []
    for (remove, incarnation, reason), same in groupby(
        binlogs, key=lambda one: (one.decision.remove, one.file.incarnation, one.decision.reason)
    ):
        run = list(same)
        last = f" to {run[-1].file.name.rpartition('.')[2]} ({len(run)})" if len(run) > 1 else ""
        stored = size(sum(one.size for one in run))
        rows.append(("remove" if remove else "keep", f"{run[0].file.name}{last}", incarnation, stored, reason))
    return rows


def _chain_cost(plan: PrunePlan) -> str:
    """Return a text about the cost of the chains; "" if no backup is kept only as a base."""
    cost = plan.chain_cost
    freed = size(cost.better.freed) if cost.better is not None else ""
    return cost.describe(len(plan.retention.kept), size(cost.size), freed)


def _foreign(count: int) -> str:
    return f"; {count} objects with foreign keys stay" if count else ""


def _afterlife(plan: PrunePlan) -> str:
    """Return a note on how the store treats removed objects; "" if the store frees their space at once."""
    if plan.afterlife.keeps_versions is None:
        return "it is not known whether the store keeps old versions of removed objects: this setting could not be read"
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


class PruneView(View, kind="prune", document=PruneDocument, read_from="result"):
    """A finished prune."""

    result: PruneResult

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


class CopyPlanView(View, kind="copy-plan", document=CopyPlanDocument, read_from="plan"):
    """The plan of a copy."""

    plan: CopyPlan

    def text(self) -> str:
        plan = self.plan
        lines = [
            (
                f"copy {len(plan.missing)} backups of {plan.instance}, at most {size(plan.size)};"
                f" {plan.there} are there already"
            )
        ]
        lines += [f"  copy      {backup.backup_id}  {size(backup.stored_size)}" for backup in plan.missing]
        lines += [f"  leave     {name}: {why}" for name, why in plan.left_out.items()]
        lines += [f"  damaged   {name}: {error.message}" for name, error in plan.unreadable.items()]
        return "\n".join([*lines, *(f"  binlog    {file.name}  {size(file.stored_size)}" for file in plan.binlogs)])


class CopyView(View, kind="copy", document=CopyDocument, read_from="result"):
    """A finished copy."""

    result: CopyResult

    def text(self) -> str:
        result = self.result
        lines = [
            (
                f"{len(result.copied)} backups of {result.plan.instance} copied, {size(result.size)} in"
                f" {result.seconds:.1f} s; {result.plan.there} were there already"
            )
        ]
        lines += [f"  copied    {name}" for name in result.copied]
        lines += [f"  left out  {name}: {why}" for name, why in result.plan.left_out.items()]
        lines += [
            f"  failed    {name}: {why}" for name, why in [*result.failed.items(), *result.binlogs.failed.items()]
        ]
        return "\n".join([*lines, *(f"  binlog    {name}" for name in result.binlogs.copied)])


_HOW = {Depth.LISTED: "by listing", Depth.READ: "by reading every byte"}


_SHOWN = 20
"""Maximum number of lines about damage per backup in the text. JSON contains all lines."""


class VerifyPlanView(View, kind="verify-plan", document=VerifyPlanDocument, read_from="plan"):
    """The plan of a verification."""

    plan: VerifyPlan

    def text(self) -> str:
        plan = self.plan
        lines = [
            f"verify {len(plan.chosen)} of {len(plan.backups.backups)} backups of {plan.instance} {_HOW[plan.depth]}"
        ]
        if plan.depth is Depth.READ:
            lines[0] += f", {size(plan.size)} to fetch"
        lines += [f"  {name}  {_since(plan, name)}" for name in plan.chosen]
        if plan.archive.files:
            lines.append(f"and {len(plan.binlogs)} of {len(plan.archive.files)} archived binlogs")
        return "\n".join(lines)


def _since(plan: VerifyPlan, name: str) -> str:
    if name in plan.known.damaged():
        return "damaged at the last verification"
    since = plan.known.whole_since(name, plan.depth)
    return f"undamaged on {since:%Y-%m-%d %H:%M:%S} UTC" if since else f"never verified {_HOW[plan.depth]}"


class VerifyView(View, kind="verify", document=VerifyDocument, read_from="result"):
    """The result of a verification: damaged backups, the backups that need them, and the restorable backups."""

    result: VerifyResult

    def text(self) -> str:
        result = self.result
        chosen, there = result.plan.chosen, len(result.plan.backups.backups) + len(result.plan.backups.unreadable)
        lines = [
            (
                f"{len(chosen)} of {there} backups of {result.plan.instance} verified {_HOW[result.plan.depth]} in"
                f" {result.seconds:.1f} s"
            )
        ]
        if result.plan.depth is Depth.READ:
            lines[0] += f", {size(result.size)}"
        for name, damage in result.damage.items():
            lines.append(f"  damaged   {name}")
            lines += [f"            {text}" for text in damage[:_SHOWN]]
            if len(damage) > _SHOWN:
                lines.append(f"            and {len(damage) - _SHOWN} more")
            if result.meaning.dependents.get(name):
                lines.append(f"            needed by {', '.join(result.meaning.dependents[name])}")
        lines += [f"  broken    {name}: {text}" for name, text in result.meaning.broken.items()]
        good = result.meaning.restorable
        lines.append(
            f"  good      {len(good)} of {there} backups can be restored"
            + (f", the newest is {good[-1]}" if good else "")
        )
        reads = result.last_reads
        if result.plan.backups.backups:
            oldest = f", least recently on {min(reads.values()):%Y-%m-%d %H:%M:%S} UTC" if reads else ""
            lines.append(f"  read      {len(reads)} of {there} backups were read in full{oldest}")
        if result.raw:
            lines.append(
                f"  raw       {len(result.raw)} of them are stored as ZFS encrypted them: that their blocks can be"
                " decrypted, a drill alone proves"
            )
        if result.plan.archive.files or result.binlogs:
            lines.append(
                f"  binlogs   {len(result.plan.binlogs)} of {len(result.plan.archive.files)} archived ones verified,"
                f" {len(result.binlogs)} damaged"
            )
        for name, damage in result.binlogs.items():
            lines += [f"  damaged   {name}", *(f"            {text}" for text in damage[:_SHOWN])]
        for name, damage in result.documents.damage.items():
            lines += [f"  damaged   {name}", *(f"            {text}" for text in damage)]
        if result.documents.without_digest:
            count = f"{result.documents.without_digest} of {result.documents.read} documents"
            lines.append(f"  note      {count} carry no digest: an earlier version stored them")
        lines += missing_lines(result.missing, 10, "  ")
        if result.unrecorded:
            lines.append(f"  note      the findings could not be saved: {result.unrecorded}")
        return "\n".join(lines)
