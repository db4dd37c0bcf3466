"""Views of a verification and its plan."""

from __future__ import annotations

from zsnapdb.base.quantities import size
from zsnapdb.documents.repository import VerifyDocument, VerifyPlanDocument
from zsnapdb.jobs.repository.verify import VerifyPlan, VerifyResult
from zsnapdb.report.view import View, missing_lines
from zsnapdb.repository.verifications import Depth

_HOW = {Depth.LISTED: "by listing", Depth.READ: "by reading every byte"}


_SHOWN = 20
"""The greatest number of damage lines in the text per backup; JSON has all."""


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
    """The result of a verification: damaged backups, the backups that need them, the restorable backups."""

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
