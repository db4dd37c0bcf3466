"""Views of bases: what making one does, the list, and the removal of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import size
from zsnapdb.documents.machine import BaseDestroyDocument, BasePlanDocument, BasesDocument
from zsnapdb.jobs.vm.base import MachineBasePlan
from zsnapdb.jobs.vm.catalogue import MachineBase
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.view import View


@dataclass(frozen=True)
class BasePlanView(View):
    """What making a base would do."""

    plan: MachineBasePlan
    kind: ClassVar[str] = "vm-base-plan"
    document_class = BasePlanDocument
    read_from = "plan"

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


@dataclass(frozen=True)
class BaseCreatedView(BasePlanView):
    """A base that was made."""

    kind: ClassVar[str] = "vm-base-created"

    def text(self) -> str:
        name = self.plan.name
        return f"{super().text()}\nthe base {name} is ready: `zsnapdb vm clone {name} --name-template NAME`"


@dataclass(frozen=True)
class BasesView(TabularView):
    """All bases."""

    bases: Sequence[MachineBase]
    kind: ClassVar[str] = "vm-bases"
    document_class = BasesDocument

    def parts(self) -> Sequence[Part]:
        rows = [
            (
                base.name,
                base.made_of,
                base.phase.value,
                base.created,
                ", ".join(sorted(base.volumes)),
                size(base.own_bytes),
            )
            for base in self.bases
        ]
        headings = ("BASE", "MADE OF", "PHASE", "CREATED", "DISKS", "OWN BYTES")
        return [Table(headings, rows, "no bases: `zsnapdb vm base create` makes one")]


@dataclass(frozen=True)
class BaseDestroyPlanView(View):
    """What removing a base would do."""

    name: str
    base: MachineBase | None
    kind: ClassVar[str] = "vm-base-destroy-plan"
    document_class = BaseDestroyDocument

    def text(self) -> str:
        if self.base is None:
            return f"there is no base {self.name}; nothing to do"
        return "\n".join(f"zfs destroy {name}" for name in (*self.base.volumes.values(), self.base.anchor))


@dataclass(frozen=True)
class BaseDestroyedView(BaseDestroyPlanView):
    """A base that was removed."""

    kind: ClassVar[str] = "vm-base-destroyed"

    def text(self) -> str:
        return f"there is no base {self.name}" if self.base is None else f"the base {self.name} was destroyed"
