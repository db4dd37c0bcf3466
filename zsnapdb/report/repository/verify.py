"""A verification and its plan, as text and JSON."""

from __future__ import annotations

from zsnapdb.jobs.repository.verify import VerifyPlan, VerifyResult
from zsnapdb.jobs.repository.verify_binlogs import name_of
from zsnapdb.report.document import document
from zsnapdb.report.units import size
from zsnapdb.repository.verifications import Depth

_HOW = {Depth.LISTED: "by listing", Depth.READ: "by reading every byte"}
_SHOWN = 20
"""Lines of damage shown of one backup; JSON has all."""


def plan(found: VerifyPlan) -> str:
    """What a verification would look at."""
    lines = [
        f"verify {len(found.chosen)} of {len(found.backups.backups)} backups of {found.instance} {_HOW[found.depth]}"
    ]
    if found.depth is Depth.READ:
        lines[0] += f", {size(found.size)} to fetch"
    lines += [f"  {name}  {_since(found, name)}" for name in found.chosen]
    if found.archive.files:
        lines.append(f"and {len(found.binlogs)} of {len(found.archive.files)} archived binlogs")
    return "\n".join(lines)


def _since(found: VerifyPlan, name: str) -> str:
    if name in found.known.damaged():
        return "was damaged when it was last looked at"
    since = found.known.whole_since(name, found.depth)
    return f"was whole on {since:%Y-%m-%d %H:%M:%S} UTC" if since else f"never verified {_HOW[found.depth]}"


def plan_json(found: VerifyPlan) -> str:
    """What a verification would look at."""
    return document(
        "verify-plan",
        instance=found.instance,
        depth=found.depth.value,
        backups=list(found.chosen),
        binlogs=[name_of(file) for file in found.binlogs],
        bytes=found.size,
    )


def result(found: VerifyResult) -> str:
    """What a verification found: what is damaged, what needs it, what can still be restored."""
    chosen, there = found.plan.chosen, len(found.plan.backups.backups) + len(found.plan.backups.unreadable)
    lines = [
        (
            f"{len(chosen)} of {there} backups of {found.plan.instance} verified {_HOW[found.plan.depth]} in"
            f" {found.seconds:.1f} s"
        )
    ]
    if found.plan.depth is Depth.READ:
        lines[0] += f", {size(found.size)}"
    for name, damage in found.damage.items():
        lines.append(f"  damaged   {name}")
        lines += [f"            {text}" for text in damage[:_SHOWN]]
        if len(damage) > _SHOWN:
            lines.append(f"            and {len(damage) - _SHOWN} more")
        if found.meaning.dependents.get(name):
            lines.append(f"            needed by {', '.join(found.meaning.dependents[name])}")
    lines += [f"  broken    {name}: {text}" for name, text in found.meaning.broken.items()]
    good = found.meaning.restorable
    lines.append(
        f"  whole     {len(good)} of {there} backups can be restored" + (f", the newest is {good[-1]}" if good else "")
    )
    if found.plan.archive.files or found.binlogs:
        lines.append(
            f"  binlogs   {len(found.plan.binlogs)} of {len(found.plan.archive.files)} archived ones verified,"
            f" {len(found.binlogs)} damaged"
        )
    for name, damage in found.binlogs.items():
        lines += [f"  damaged   {name}", *(f"            {text}" for text in damage[:_SHOWN])]
    if found.unrecorded:
        lines.append(f"  note      the findings could not be written down: {found.unrecorded}")
    return "\n".join(lines)


def result_json(found: VerifyResult) -> str:
    """What a verification found."""
    return document(
        "verify",
        instance=found.plan.instance,
        depth=found.plan.depth.value,
        whole=found.is_whole,
        verified=list(found.plan.chosen),
        damaged=[
            {"backup_id": name, "damage": list(damage), "needed_by": list(found.meaning.dependents.get(name, ()))}
            for name, damage in found.damage.items()
        ],
        broken=dict(found.meaning.broken),
        restorable=list(found.meaning.restorable),
        binlogs={
            "verified": [name_of(file) for file in found.plan.binlogs],
            "damaged": [{"file": name, "damage": list(damage)} for name, damage in found.binlogs.items()],
        },
        bytes=found.size,
        seconds=found.seconds,
        unrecorded=found.unrecorded or None,
    )
