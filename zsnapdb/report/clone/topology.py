"""Views of a set of clones and of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.topology import CloneSet, SetPlan
from zsnapdb.report.clone.create import ClonePlanView
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class CloneSetPlanDocument(TypedDict):
    """What making a set of clones would do."""

    names: list[str]
    topology: str
    instance: str
    backup_id: str | None


class MemberFields(TypedDict):
    """A clone of a set."""

    name: str
    part: str
    port: int
    user: str
    password: str
    mount: str
    backup_id: str


class CloneSetDocument(TypedDict):
    """A new set of clones. `arrival_seconds`: until a row of the source was at every replica."""

    name: str
    topology: str
    members: list[MemberFields]
    arrival_seconds: float | None


@dataclass(frozen=True)
class CloneSetPlanView(View):
    """What making a set of clones would do."""

    plan: SetPlan
    kind: ClassVar[str] = "clone-set-plan"

    def text(self) -> str:
        plan = self.plan
        parts = (
            "the first is the source of the others" if plan.topology == "replication" else "independent of one another"
        )
        return (
            f"a set of {len(plan.names)} clones, {parts}: {', '.join(plan.names)}; each is made like"
            f" the first:\n{ClonePlanView(plan.first).text()}"
        )

    def fields(self) -> CloneSetPlanDocument:
        plan = self.plan
        first = plan.first
        return {
            "names": list(plan.names),
            "topology": plan.topology,
            "instance": first.instance,
            "backup_id": first.set_id or None,
        }


@dataclass(frozen=True)
class CloneSetView(View):
    """A new set of clones."""

    made: CloneSet
    kind: ClassVar[str] = "clone-set"

    def text(self) -> str:
        made = self.made
        first = made.members[0].clone.info
        lines = [
            (
                f"set {made.name}: {len(made.members)} clones of {first.instance}, as of {first.backup_id},"
                f" {made.topology}"
            )
        ]
        if made.arrival_seconds is not None:
            lines.append(f"  a row of the source arrived at every replica after {made.arrival_seconds:.2f} s")
        rows = [
            (m.clone.info.label, m.part, str(m.clone.info.port), f"--defaults-file={m.clone.process.folder}/client.cnf")
            for m in made.members
        ]
        return "\n".join([*lines, table(("CLONE", "PART", "PORT", "CLIENT"), rows)])

    def fields(self) -> CloneSetDocument:
        made = self.made
        members: list[MemberFields] = [
            {
                "name": m.clone.info.label,
                "part": m.part,
                "port": m.clone.info.port,
                "user": m.clone.login.user,
                "password": m.clone.login.password.get_secret_value(),
                "mount": str(m.clone.info.mount),
                "backup_id": m.clone.info.backup_id,
            }
            for m in made.members
        ]
        return {
            "name": made.name,
            "topology": made.topology,
            "members": members,
            "arrival_seconds": made.arrival_seconds,
        }
