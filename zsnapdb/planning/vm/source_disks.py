"""Checks whether the disks of a domain can be backed up, and finds their volumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.base.domain_types import pool_of
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, unfit, warning
from zsnapdb.planning.vm.consistency_level import Grade, Power, hint_for
from zsnapdb.planning.vm.domain import Domain, DomainDisk

_SUBJECT = "disks"
_KNOWN_DEVICES = ("disk", "cdrom", "floppy")


@dataclass(frozen=True)
class DiskDevice:
    """A device, as the kernel reports it: its dataset if it is a zvol, and whether it is a partition."""

    dataset: str | None
    is_partition: bool = False


@dataclass(frozen=True)
class JudgedDisks:
    """The volumes of a machine (datasets by disk target), and the findings about its disks."""

    volumes: Mapping[str, str]
    findings: tuple[FitnessFinding, ...]


def judge(domain: Domain, running: Domain | None, devices: Mapping[str, DiskDevice]) -> JudgedDisks:
    """Return the volumes of the domain, and an error finding for each disk that is not a volume.

    The argument `running` is the running domain, or None if the machine is not running. The argument `devices` maps
    each target to the disk's device, taken from the running domain if there is one.
    """
    disks = (running or domain).volumes
    findings = [_judged_disk(domain.name, disk, devices[disk.target]) for disk in disks]
    findings += [
        unfit(_SUBJECT, f"the disk {disk.target} of {domain.name} is a {disk.device} of the host", "give it a zvol")
        for disk in (running or domain).disks
        if disk.device not in _KNOWN_DEVICES
    ]
    volumes = {disk.target: devices[disk.target].dataset or "" for disk in disks}
    if not disks:
        findings.append(unfit(_SUBJECT, f"the domain {domain.name} has no disk", "see `virsh domblklist`"))
    findings += _attached(domain, running)
    datasets = [dataset for dataset in volumes.values() if dataset]
    twice = sorted({dataset for dataset in datasets if datasets.count(dataset) > 1})
    findings += [unfit(_SUBJECT, f"several disks are the zvol {one}", "see `virsh domblklist`") for one in twice]
    pools = sorted({pool_of(dataset) for dataset in datasets})
    if len(pools) > 1:
        text = f"the disks are in several pools: {', '.join(pools)}; only one pool snapshots them all at one moment"
        findings.append(unfit(_SUBJECT, text, "move the disks to one pool"))
    if domain.nvram is not None:
        text = f"the NVRAM file {domain.nvram} of {domain.name} is not in the backup; a restored machine begins with an"
        findings.append(warning("nvram", f"{text} empty one", "copy the file if its boot entries or keys matter"))
    return JudgedDisks(volumes, tuple(findings))


def _judged_disk(domain: str, disk: DomainDisk, device: DiskDevice) -> FitnessFinding:
    name = f"the disk {disk.target} of {domain}"
    place = disk.source or "without a source"
    if disk.kind != "block" or device.dataset is None:
        return unfit(_SUBJECT, f"{name} is not a zvol of this host: {disk.kind} {place}", "move the disk to a zvol")
    if device.is_partition:
        return unfit(
            _SUBJECT, f"{name} is a partition of the zvol {device.dataset}: {place}", "give the machine the whole zvol"
        )
    if disk.cache == "unsafe":
        text = f'{name} has cache="unsafe": what the guest wrote out may not be on {device.dataset}'
        return unfit(_SUBJECT, text, "set another cache mode (`virsh edit`), such as none")
    return ok(_SUBJECT, f"{disk.target} = {device.dataset}")


def _attached(domain: Domain, running: Domain | None) -> list[FitnessFinding]:
    """Return an error finding if the disks of the running machine differ from the disks after its next start."""
    if running is None:
        return []
    now = {disk.target: disk.source for disk in running.volumes}
    configured = {disk.target: disk.source for disk in domain.volumes}
    differing = sorted(target for target in {*now, *configured} if now.get(target) != configured.get(target))
    if not differing:
        return []
    text = f"the machine {domain.name} runs with other disks than its configuration has: {', '.join(differing)}"
    hint = "make both alike (`virsh attach-disk --persistent`, `virsh detach-disk --persistent`)"
    return [unfit(_SUBJECT, text, hint)]


def judge_grade(power: Power, minimum: Grade, domain: str, running: Grade) -> list[FitnessFinding]:
    """Return a finding about the best grade that a backup can have if it is made now.

    The finding is an error if this grade is below the minimum. While the machine runs, the best grade is `running`.
    """
    best = running if power is Power.RUNNING else Grade.CRASH
    if power is Power.SHUT_DOWN:
        best = Grade.QUIESCED
    text = f"the machine {domain} is {power}: at best the grade {best}"
    if best.rank < minimum.rank:
        return [unfit("grade", f"{text}, below minimum_grade = {minimum}", hint_for(minimum))]
    return [ok("grade", text)]
