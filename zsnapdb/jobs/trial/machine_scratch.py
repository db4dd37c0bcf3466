"""The scratch copies of drilled machines: their domains are removed before their zvols, also after a killed run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.trial import scratch
from zsnapdb.planning.vm.restored_domain import is_of_restore
from zsnapdb.vm.hypervisor import connected
from zsnapdb.zfs import datasets

if TYPE_CHECKING:
    from zsnapdb.jobs.restore.machine_plan import Connect

DRILL = "drill"


@dataclass(frozen=True)
class DrilledMachine:
    """The scratch copy of a drilled machine that exists now: its instance, and the dataset that contains it."""

    instance: str
    container: str


def copies(settings: Settings) -> Iterator[DrilledMachine]:
    """Yield the copies of all instances that are machines, whether a drill is at work on them or not."""
    for name, instance in settings.instance.items():
        if instance.vm is None:
            continue
        above = [instance.drill.dataset] if instance.drill.dataset is not None else []
        homes = [f"{dataset}/{name}" for dataset in above]
        homes += [f"{pool}/zsnapdb/scratch/{name}" for pool in datasets.pools()]
        for home in dict.fromkeys(homes):
            for container in scratch.containers_in(f"{home}/{DRILL}"):
                yield DrilledMachine(name, container)


def lock_name(copy: DrilledMachine) -> str:
    """Return the name of the lock that a drill of the machine holds (`jobs/base/exclusion.py`, for_instance)."""
    return f"{DRILL}-{copy.instance}"


def ending(settings: Settings, connect: Connect = connected) -> scratch.EndUsers:
    """Return what removes the domains of a copy before its datasets are destroyed."""

    def end(container: str) -> None:
        end_domains(settings, container, connect)

    return end


def end_domains(settings: Settings, container: str, connect: Connect = connected) -> None:
    """Take the power from the domains of a copy and let libvirt forget them.

    A domain is of the copy if its metadata name its own UUID and the restore that is on the copy's datasets. No other
    domain is changed. PreflightError if libvirt does not answer.
    """
    restores = _restores(container)
    if not restores:
        return
    with connect(settings.vms.uri) as hypervisor:
        for known in hypervisor.domains():
            if any(is_of_restore(known.xml, restore_id) for restore_id in restores):
                hypervisor.power_off(known.domain.uuid)
                hypervisor.undefine(known.domain.uuid)


def _restores(container: str) -> set[str]:
    """Return the ids of the restores that made datasets in the container."""
    if not datasets.exists(container):
        return set()
    properties = datasets.children(container, [RESTORED_PROPERTY]).values()
    marks = {found[RESTORED_PROPERTY] for found in properties}
    return {mark.value for mark in marks if mark.is_local}
