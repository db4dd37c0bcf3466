"""Views of machines: clones that are planned and made, the list, and what a command does to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.jobs.copies.catalogue import UnreadableCopy
from zsnapdb.jobs.vm.catalogue import SeenMachine
from zsnapdb.jobs.vm.create import MachinesPlan, MadeMachines
from zsnapdb.jobs.vm.life import MachineDestroyPlan, MachineStep
from zsnapdb.planning.clone.lease import remaining, stamp
from zsnapdb.report.copies import UnreadableFields, unreadable_fields, unreadable_lines
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.view import View
from zsnapdb.report.vm.fields import MachineFields, SpaceFields, inside, machine_fields, space_fields, state


class PlannedMachineFields(TypedDict):
    """A machine that would be cloned; `domain` is its XML."""

    name: str
    uuid: str
    dataset: str
    volumes: dict[str, str]
    domain: str


class MachinesPlanDocument(TypedDict):
    """What cloning machines would do."""

    base: str
    grade: str | None
    machines: list[PlannedMachineFields]
    spaces: list[SpaceFields]
    network: str
    expires: str
    owner: str
    starts: bool
    waits_for: str
    identity_inside: str


class MachinesMadeDocument(TypedDict):
    """Machines that were cloned."""

    base: str
    grade: str | None
    machines: list[MachineFields]
    seconds: dict[str, float]
    identity_inside: str


class MachinesDocument(TypedDict):
    """All machines, and those whose properties cannot be read."""

    machines: list[MachineFields]
    unreadable: list[UnreadableFields]


class MachineStepDocument(TypedDict):
    """What a command would do to a machine."""

    verb: str
    machine: MachineFields
    steps: list[str]


class MachineChangedDocument(TypedDict):
    """A machine after a command."""

    verb: str
    machine: MachineFields


class MachineDestroyDocument(TypedDict):
    """The machine that is destroyed, or would be; null if there is none."""

    name: str
    machine: MachineFields | None
    foreign_snapshots: list[str]


@dataclass(frozen=True)
class MachinesPlanView(View):
    """What cloning machines would do."""

    plan: MachinesPlan
    kind: ClassVar[str] = "vm-clone-plan"

    def text(self) -> str:
        plan = self.plan
        lines = [plan.origin.words]
        lines += [f"disk      {space.target}: {space.words}" for space in plan.origin.spaces]
        for machine in plan.machines:
            lines.append(f"machine   {machine.name}, UUID {machine.uuid}")
            lines += [f"          zfs clone {plan.origin.snapshots[t]} {name}" for t, name in machine.volumes.items()]
        lines.append(f"network   {plan.network.words}")
        lines.append(f"lease     until {stamp(plan.lease.expires)}, owner {plan.owner}")
        lines.append(f"start     {f'wait for {plan.marker.words}' if plan.starts else 'no'}")
        lines.append(f"identity  {inside(plan.identity)}")
        return "\n".join(lines)

    def fields(self) -> MachinesPlanDocument:
        plan = self.plan
        return {
            "base": plan.origin.name,
            "grade": plan.origin.grade,
            "machines": [
                {"name": m.name, "uuid": m.uuid, "dataset": m.anchor, "volumes": dict(m.volumes), "domain": m.xml}
                for m in plan.machines
            ],
            "spaces": [space_fields(space) for space in plan.origin.spaces],
            "network": plan.network.words,
            "expires": stamp(plan.lease.expires),
            "owner": plan.owner,
            "starts": plan.starts,
            "waits_for": plan.marker.words,
            "identity_inside": plan.identity,
        }


@dataclass(frozen=True)
class MachinesMadeView(View):
    """Machines that were cloned."""

    made: MadeMachines
    kind: ClassVar[str] = "vm-cloned"

    def text(self) -> str:
        origin = self.made.plan.origin
        lines = [f"cloned from {origin.name}, a backup of the grade {origin.grade}"] if origin.grade is not None else []
        for seen in self.made.machines:
            addresses = f" at {', '.join(seen.addresses)}" if seen.addresses else ""
            lines.append(f"virtual machine {seen.machine.name} is {seen.state}{addresses}")
        lines.append("  ".join(f"{phase} {format_duration(seconds)}" for phase, seconds in self.made.seconds.items()))
        lines.append(inside(self.made.plan.identity))
        return "\n".join(lines)

    def fields(self) -> MachinesMadeDocument:
        return {
            "base": self.made.plan.origin.name,
            "grade": self.made.plan.origin.grade,
            "machines": [machine_fields(seen) for seen in self.made.machines],
            "seconds": dict(self.made.seconds),
            "identity_inside": self.made.plan.identity,
        }


@dataclass(frozen=True)
class MachinesView(TabularView):
    """All machines."""

    machines: Sequence[SeenMachine]
    now: datetime
    unreadable: Sequence[UnreadableCopy] = ()
    kind: ClassVar[str] = "vms"

    def parts(self) -> Sequence[Part]:
        rows = [
            (
                seen.machine.name,
                seen.machine.base,
                seen.machine.grade or "-",
                state(seen),
                ", ".join(seen.addresses) or "-",
                seen.machine.network,
                seen.machine.owner,
                remaining(seen.machine.lease, self.now),
                "yes" if seen.machine.lease.protected_until else "no",
                size(seen.machine.own_bytes),
            )
            for seen in self.machines
        ]
        headings = (
            "MACHINE",
            "BASE",
            "GRADE",
            "STATE",
            "ADDRESS",
            "NETWORK",
            "OWNER",
            "EXPIRES",
            "PROTECTED",
            "OWN BYTES",
        )
        table = Table(headings, rows, "no virtual machines: `zsnapdb vm clone` makes one")
        return [table, *unreadable_lines(self.unreadable)]

    def fields(self) -> MachinesDocument:
        return {
            "machines": [machine_fields(seen) for seen in self.machines],
            "unreadable": unreadable_fields(self.unreadable),
        }


@dataclass(frozen=True)
class MachineStepView(View):
    """What a command would do to a machine."""

    step: MachineStep
    verb: str
    kind: ClassVar[str] = "vm-plan"

    def text(self) -> str:
        nothing = f"the virtual machine {self.step.seen.machine.name} is {state(self.step.seen)}; nothing to do"
        return "\n".join(self.step.steps) or nothing

    def fields(self) -> MachineStepDocument:
        return {"verb": self.verb, "machine": machine_fields(self.step.seen), "steps": list(self.step.steps)}


@dataclass(frozen=True)
class MachineChangedView(View):
    """A machine after a command."""

    seen: SeenMachine
    verb: str
    kind: ClassVar[str] = "vm-changed"

    def text(self) -> str:
        until = stamp(self.seen.machine.lease.expires)
        return f"virtual machine {self.seen.machine.name}: {self.verb}, {state(self.seen)}, lease until {until}"

    def fields(self) -> MachineChangedDocument:
        return {"verb": self.verb, "machine": machine_fields(self.seen)}


@dataclass(frozen=True)
class MachineDestroyPlanView(View):
    """What destroying a machine would do."""

    name: str
    plan: MachineDestroyPlan | None
    kind: ClassVar[str] = "vm-destroy-plan"

    def text(self) -> str:
        if self.plan is None:
            return f"there is no virtual machine {self.name}; nothing to do"
        machine = self.plan.seen.machine
        lines = [f"end and undefine the domain {machine.name} with the UUID {machine.uuid}"]
        lines += [f"zfs destroy {name}" for name in self.plan.others.snapshots]
        return "\n".join([*lines, *(f"zfs destroy {name}" for name in (*machine.volumes.values(), machine.anchor))])

    def fields(self) -> MachineDestroyDocument:
        return {
            "name": self.name,
            "machine": machine_fields(self.plan.seen) if self.plan else None,
            "foreign_snapshots": list(self.plan.others.snapshots) if self.plan else [],
        }


@dataclass(frozen=True)
class MachineDestroyedView(MachineDestroyPlanView):
    """A machine that was destroyed."""

    kind: ClassVar[str] = "vm-destroyed"

    def text(self) -> str:
        gone = "there is no virtual machine" if self.plan is None else "destroyed the virtual machine"
        return f"{gone} {self.name}"
