"""Views of virtual machines: plans, new clones, lists, changes, and bases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.documents import clone as documents
from zsnapdb.jobs.dataset_copies.catalogue import UnreadableCopy
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.vm.base import MachineBasePlan
from zsnapdb.jobs.vm.catalogue import MachineBase, SeenMachine
from zsnapdb.jobs.vm.create import CreatedMachines, MachinesPlan
from zsnapdb.jobs.vm.lifecycle import MachineDestroyPlan, MachineStep
from zsnapdb.planning.clone.lease import remaining, stamp
from zsnapdb.planning.vm.cloud_init import GuestIdentity
from zsnapdb.report.view import Part, TabularView, View, columns, unreadable_lines

_INSIDE = {
    GuestIdentity.NONE: (
        "zsnapdb changed nothing inside the guest: its machine-id, host keys, host name and the identity of its servers"
        " are those of the machine that was cloned"
    ),
    GuestIdentity.CLOUD_INIT: (
        "cloud-init in the guest is given a host name, and makes a new machine-id and new ssh host keys (NoCloud, from"
        " a CD); in a guest without cloud-init nothing changes. The identity of its servers (server_uuid, server_id) is"
        " that of the machine that was cloned"
    ),
}


def inside(identity: GuestIdentity) -> str:
    """Return the text about the identity of a cloned guest."""
    return _INSIDE[identity]


def state(seen: SeenMachine) -> str:
    """Return the state of the machine, or its phase if it is not complete."""
    if seen.machine.phase is not CopyPhase.READY:
        return seen.machine.phase
    return seen.state


class MachinesPlanView(View, kind="vm-clone-plan", document=documents.MachinesPlanDocument, read_from="plan"):
    """The plan of cloned machines."""

    plan: MachinesPlan

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


class MachinesMadeView(View, kind="vm-cloned", document=documents.MachinesMadeDocument, read_from="made"):
    """New clones of virtual machines."""

    made: CreatedMachines

    def text(self) -> str:
        origin = self.made.plan.origin
        lines = [f"cloned from {origin.name}, a backup of the grade {origin.grade}"] if origin.grade is not None else []
        for seen in self.made.machines:
            addresses = f" at {', '.join(seen.addresses)}" if seen.addresses else ""
            lines.append(f"virtual machine {seen.machine.name} is {seen.state}{addresses}")
        lines.append("  ".join(f"{phase} {format_duration(seconds)}" for phase, seconds in self.made.seconds.items()))
        lines.append(inside(self.made.plan.identity))
        return "\n".join(lines)


class MachinesView(TabularView, kind="vms", document=documents.MachinesDocument):
    """All machines."""

    machines: Sequence[SeenMachine]
    now: datetime
    unreadable: Sequence[UnreadableCopy] = ()

    def parts(self) -> Sequence[Part]:
        cells: Mapping[str, Callable[[SeenMachine], str]] = {
            "MACHINE": lambda seen: seen.machine.name,
            "BASE": lambda seen: seen.machine.base,
            "GRADE": lambda seen: seen.machine.grade or "-",
            "STATE": state,
            "ADDRESS": lambda seen: ", ".join(seen.addresses) or "-",
            "NETWORK": lambda seen: seen.machine.network,
            "OWNER": lambda seen: seen.machine.owner,
            "EXPIRES": lambda seen: remaining(seen.machine.lease, self.now),
            "PROTECTED": lambda seen: "yes" if seen.machine.lease.protected_until else "no",
            "OWN BYTES": lambda seen: size(seen.machine.own_bytes),
        }
        table = columns(self.machines, cells, "no virtual machines: `zsnapdb vm clone` makes one")
        return [table, *unreadable_lines(self.unreadable)]


class MachineStepView(View, kind="vm-plan", document=documents.MachineStepDocument):
    """The plan of a command on a machine."""

    step: MachineStep
    verb: str

    def text(self) -> str:
        nothing = f"the virtual machine {self.step.seen.machine.name} is {state(self.step.seen)}; nothing to do"
        return "\n".join(self.step.steps) or nothing


class MachineChangedView(View, kind="vm-changed", document=documents.MachineChangedDocument):
    """A machine after a command."""

    seen: SeenMachine
    verb: str

    def text(self) -> str:
        until = stamp(self.seen.machine.lease.expires)
        return f"virtual machine {self.seen.machine.name}: {self.verb}, {state(self.seen)}, lease until {until}"


class MachineDestroyPlanView(View, kind="vm-destroy-plan", document=documents.MachineDestroyDocument):
    """The plan to destroy a machine."""

    name: str
    plan: MachineDestroyPlan | None

    def text(self) -> str:
        if self.plan is None:
            return f"there is no virtual machine {self.name}; nothing to do"
        machine = self.plan.seen.machine
        lines = [f"end and undefine the domain {machine.name} with the UUID {machine.uuid}"]
        lines += [f"zfs destroy {name}" for name in self.plan.others.snapshots]
        return "\n".join([*lines, *(f"zfs destroy {name}" for name in (*machine.volumes.values(), machine.anchor))])


class MachineDestroyedView(MachineDestroyPlanView, kind="vm-destroyed"):
    """A destroyed machine."""

    def text(self) -> str:
        gone = "there is no virtual machine" if self.plan is None else "destroyed the virtual machine"
        return f"{gone} {self.name}"


class BasePlanView(View, kind="vm-base-plan", document=documents.BasePlanDocument, read_from="plan"):
    """The plan of a new base."""

    plan: MachineBasePlan

    def text(self) -> str:
        plan = self.plan
        lines = [f"base      {plan.name} of {plan.made_of}"]
        for target, dataset in plan.volumes.items():
            source = plan.source_snapshots.get(target)
            how = f"zfs clone of {source}" if source else f"copy of {plan.image.path if plan.image else ''}"
            lines.append(f"disk      {target}: {dataset}, {plan.sizes[target]} bytes, {how}")
        if plan.sources:
            lines.append("note      the disks of the domain cannot be destroyed while the base exists")
        return "\n".join(lines)


class BaseCreatedView(BasePlanView, kind="vm-base-created"):
    """A new base."""

    def text(self) -> str:
        name = self.plan.name
        return f"{super().text()}\nthe base {name} is ready: `zsnapdb vm clone {name} --name-template NAME`"


class BasesView(TabularView, kind="vm-bases", document=documents.BasesDocument):
    """All bases."""

    bases: Sequence[MachineBase]

    def parts(self) -> Sequence[Part]:
        cells: Mapping[str, Callable[[MachineBase], str]] = {
            "BASE": lambda base: base.name,
            "MADE OF": lambda base: base.made_of,
            "PHASE": lambda base: base.phase.value,
            "CREATED": lambda base: base.created,
            "DISKS": lambda base: ", ".join(sorted(base.volumes)),
            "OWN BYTES": lambda base: size(base.own_bytes),
        }
        return [columns(self.bases, cells, "no bases: `zsnapdb vm base create` makes one")]


class BaseDestroyPlanView(View, kind="vm-base-destroy-plan", document=documents.BaseDestroyDocument):
    """The plan to remove a base."""

    name: str
    base: MachineBase | None

    def text(self) -> str:
        if self.base is None:
            return f"there is no base {self.name}; nothing to do"
        return "\n".join(f"zfs destroy {name}" for name in (*self.base.volumes.values(), self.base.anchor))


class BaseDestroyedView(BaseDestroyPlanView, kind="vm-base-destroyed"):
    """A removed base."""

    def text(self) -> str:
        return f"there is no base {self.name}" if self.base is None else f"the base {self.name} was destroyed"
