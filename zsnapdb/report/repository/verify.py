"""A verification and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.repository.verify import VerifyPlan, VerifyResult
from zsnapdb.jobs.repository.verify_binlogs import name_of
from zsnapdb.report.findings import MissingFields, missing_fields, missing_lines
from zsnapdb.report.view import View
from zsnapdb.repository.verifications import Depth

_HOW = {Depth.LISTED: "by listing", Depth.READ: "by reading every byte"}


_SHOWN = 20
"""Most lines of damage printed per backup; JSON has all."""


class VerifyPlanDocument(TypedDict):
    """What a verification would check."""

    instance: str
    depth: str
    backups: list[str]
    binlogs: list[str]
    bytes: int


class DamagedBackupFields(TypedDict):
    """A damaged backup, and the backups that need it."""

    backup_id: str
    damage: list[str]
    needed_by: list[str]


class DamagedBinlogFields(TypedDict):
    """A damaged archived binlog."""

    file: str
    damage: list[str]


class VerifiedBinlogsFields(TypedDict):
    """The binlogs of a verification."""

    verified: list[str]
    damaged: list[DamagedBinlogFields]


class DamagedDocumentFields(TypedDict):
    """A damaged document that is no manifest, by its key."""

    file: str
    damage: list[str]


class VerifiedDocumentsFields(TypedDict):
    """The documents of a verification. `without_digest`: stored by an earlier version, without signature and digest."""

    read: int
    without_digest: int
    damaged: list[DamagedDocumentFields]


class VerifyDocument(TypedDict):
    """The result of a verification. `unrecorded`: why the findings could not be saved.

    `raw`: the verified backups that are stored as ZFS encrypted them. That they can be decrypted, a drill alone proves.
    """

    instance: str
    depth: str
    whole: bool
    verified: list[str]
    raw: list[str]
    damaged: list[DamagedBackupFields]
    broken: dict[str, str]
    restorable: list[str]
    missing: list[MissingFields]
    binlogs: VerifiedBinlogsFields
    documents: VerifiedDocumentsFields
    bytes: int
    seconds: float
    unrecorded: str | None


@dataclass(frozen=True)
class VerifyPlanView(View):
    """What a verification would check."""

    plan: VerifyPlan
    kind: ClassVar[str] = "verify-plan"

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

    def fields(self) -> VerifyPlanDocument:
        plan = self.plan
        return {
            "instance": plan.instance,
            "depth": plan.depth.value,
            "backups": list(plan.chosen),
            "binlogs": [name_of(file) for file in plan.binlogs],
            "bytes": plan.size,
        }


def _since(plan: VerifyPlan, name: str) -> str:
    if name in plan.known.damaged():
        return "damaged at the last verification"
    since = plan.known.whole_since(name, plan.depth)
    return f"undamaged on {since:%Y-%m-%d %H:%M:%S} UTC" if since else f"never verified {_HOW[plan.depth]}"


@dataclass(frozen=True)
class VerifyView(View):
    """The result of a verification: damaged backups, the backups that need them, the restorable backups."""

    result: VerifyResult
    kind: ClassVar[str] = "verify"

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

    def fields(self) -> VerifyDocument:
        result = self.result
        return {
            "instance": result.plan.instance,
            "depth": result.plan.depth.value,
            "whole": result.is_whole,
            "verified": list(result.plan.chosen),
            "raw": list(result.raw),
            "damaged": [
                {"backup_id": name, "damage": list(damage), "needed_by": list(result.meaning.dependents.get(name, ()))}
                for name, damage in result.damage.items()
            ],
            "broken": dict(result.meaning.broken),
            "restorable": list(result.meaning.restorable),
            "missing": missing_fields(result.missing),
            "binlogs": {
                "verified": [name_of(file) for file in result.plan.binlogs],
                "damaged": [{"file": name, "damage": list(damage)} for name, damage in result.binlogs.items()],
            },
            "documents": {
                "read": result.documents.read,
                "without_digest": result.documents.without_digest,
                "damaged": [{"file": name, "damage": list(damage)} for name, damage in result.documents.damage.items()],
            },
            "bytes": result.size,
            "seconds": result.seconds,
            "unrecorded": result.unrecorded or None,
        }
