"""Restores a virtual machine: receives and checks its zvols, and defines its domain.

The machine is not started, because it has the same identity as the original.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from zsnapdb.base.errors import DamagedError, ExistsError, NotFound, PreflightError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY
from zsnapdb.jobs.host.dataset_tuning import tune
from zsnapdb.jobs.host.site_dataset_settings import notes_on_site, site_commands
from zsnapdb.jobs.restore import chain_checks
from zsnapdb.jobs.restore.plan import refuse_no_parent, restored_top
from zsnapdb.jobs.restore.preflight import judge_pool
from zsnapdb.jobs.restore.restore_inputs import RestoreFacts, read_known
from zsnapdb.jobs.restore.run_lifecycle import (
    Confirm,
    RestoreKind,
    clear_foreign,
    confirm_every_step,
    exclusive_journal,
    give_up,
    refuse_existing,
    refuse_unfit,
)
from zsnapdb.jobs.restore.volume_receive import RestoreWork, make_top, pool_needs, receive, receives_of, remove_datasets
from zsnapdb.jobs.steps.journal import CompletedStep, Handlers
from zsnapdb.jobs.steps.restore_journal import MachineJournal, MachineJournals
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.planning.dataset_property_classes import data_values
from zsnapdb.planning.restore.plan import MachineRestorePlan
from zsnapdb.planning.restore.point_forms import AtBackup, Latest, ago, parse_target
from zsnapdb.planning.restore.steps import (
    CheckVolumes,
    DefineDomain,
    MachinePreflight,
    MachineStep,
    MakeTop,
    Receive,
    VolumeCheck,
)
from zsnapdb.planning.vm.domain import parse
from zsnapdb.planning.vm.request import checked_name
from zsnapdb.planning.vm.restored_domain import HostBoot, RestoredIdentity, is_of_restore, restored
from zsnapdb.repository.manifest import Manifest, VolumePart, ZvolType
from zsnapdb.repository.manifest_source import MachineSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, Hypervisor, KnownDomain, MachineState, connected
from zsnapdb.zfs import datasets, destruction, encryption, zvols

Connect = Callable[[str], AbstractContextManager[Hypervisor]]


@dataclass(frozen=True)
class MachineRestoreRequest:
    """The requested restore: a backup of the machine, and the target dataset.

    The target is `top`, or `name` below zsnapdb's own datasets. The new domain is named `domain`. If `domain` is None,
    the new domain has the last part of the target's name. If `accepts_older` is set and the newest backup cannot be
    used, the newest usable backup is restored. If `makes_parent` is set, the restore also creates the parent dataset of
    the target. `memory` is in bytes. If `memory` is None, the new domain has as much memory as the original.
    """

    to: str = "latest"
    top: str | None = None
    name: str | None = None
    accepts_older: bool = False
    domain: str | None = None
    makes_parent: bool = False
    memory: int | None = None


def make(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    request: MachineRestoreRequest,
    connect: Connect = connected,
) -> MachineRestorePlan:
    """Return the plan of a machine's restore; change nothing.

    Raises:
        ZsnapdbError: the machine has no such backup, the chain is broken, or the target dataset or the domain already
            exists.
    """
    request = replace(request, to=ago(request.to, instance.host.now()))
    known, manifest = newest_wanted(instance, repository, request)
    source = machine_source(manifest)
    notes = known.notes_on_newer(manifest.backup_id)
    chain = known.chain_of(manifest)
    for link in chain:
        repository.ciphers(link)
    top = request.top or restored_top(manifest, request.name or f"{instance.name.replace('_', '-')}-restored")
    domain = checked_name(request.domain or top.rpartition("/")[2])
    refuse_no_parent(top, is_own=request.top is None or request.makes_parent)
    refuse_existing(top, ())
    places = {volume.role: f"{top}/{volume.role}" for volume in manifest.volumes}
    boot = instance.settings.vm.boot if instance.settings.vm is not None else None
    identity = RestoredIdentity(
        name=domain,
        uuid=str(uuid.uuid4()),
        generation=str(uuid.uuid4()),
        dataset=top,
        restore_id=instance.host.new_backup_id(),
        disks={role: str(zvols.link_of(dataset)) for role, dataset in places.items()},
        boot=HostBoot(boot.kernel, boot.initrd, boot.cmdline) if boot is not None else None,
        memory=request.memory,
    )
    defines, lacks = _defining(source.xml, identity, settings, connect)
    sites = [(places[volume.role], _zvol(volume).site) for volume in manifest.volumes]
    commands = [command for place, site in sites for command in site_commands(place, site)]
    return MachineRestorePlan(
        restore_id=identity.restore_id,
        instance=instance.name,
        repository=repository.id,
        requested=request.to,
        created=instance.host.now(),
        backup_id=manifest.backup_id,
        grade=source.grade.value,
        grade_reason=source.reason,
        original=source.domain,
        top=top,
        datasets=places,
        notes=(*notes, *lacks, *notes_on_site(() if request.makes_parent else commands)),
        steps=(*_receiving(instance, chain, top, places), _checking(manifest, places), *defines),
        repository_name=instance.other_repository,
    )


def newest_wanted(
    instance: Instance, repository: Repository, request: MachineRestoreRequest
) -> tuple[RestoreFacts, Manifest]:
    """Return the facts for the restore, and its backup: the requested backup, else the newest that may be chosen."""
    target = parse_target(request.to)
    if not isinstance(target, Latest | AtBackup):
        raise UsageError(
            f"--to {request.to} lies between two backups; a virtual machine can be restored only to a backup",
            hint="give latest, or the id of a backup (`zsnapdb list`)",
        )
    known = read_known(
        instance, repository, target, request.to, accepts_older=request.accepts_older, reads_archive=False
    )
    possible = [m for m in known.choosable() if known.named in (None, m.backup_id)]
    if not possible:
        raise NotFound(f"there is no backup of {instance.name}", hint=OTHER_ADDRESS_HINT)
    return known, known.whole(possible[-1])


def machine_source(manifest: Manifest) -> MachineSourcePart:
    """Return the source of a backup if it is a virtual machine.

    Raises:
        PreflightError: the source is not a virtual machine.
    """
    if isinstance(manifest.source, MachineSourcePart):
        return manifest.source
    raise PreflightError(
        f"backup {manifest.backup_id} is a backup of kind {manifest.source.kind}, not of a virtual machine",
        hint="choose a backup of a virtual machine, see `zsnapdb list`",
    )


def refuse_taken(hypervisor: Hypervisor, domain: str) -> None:
    """Raise ExistsError if libvirt has a domain with the given name."""
    if domain in {known.domain.name for known in hypervisor.domains()}:
        raise ExistsError(
            f"libvirt has a domain {domain}",
            hint="name a target whose last part is not the name of a domain (`virsh list --all`)",
        )


def _defining(
    text: str | None, identity: RestoredIdentity, settings: Settings, connect: Connect
) -> tuple[tuple[DefineDomain, ...], tuple[str, ...]]:
    """Return the step that defines the domain, and notes on the parts that the domain lacks.

    If the domain cannot be defined, there is no step, and a note gives the reason.
    """
    targets = {disk.target for disk in parse(text).volumes} if text is not None else set()
    if text is None or targets != set(identity.disks):
        listed = f"disks {', '.join(sorted(targets)) or 'unknown'}, volumes {', '.join(sorted(identity.disks))}"
        return (), (f"no domain is defined: the description in the backup does not fit it ({listed})",)
    with connect(settings.vms.uri) as hypervisor:
        refuse_taken(hypervisor, identity.name)
    made = restored(text, identity, ISOLATED_NETWORK)
    step = DefineDomain(identity.name, identity.uuid, ISOLATED_NETWORK, made.xml)
    return (step,), tuple(f"the restored domain lacks {part}" for part in made.left_out)


def _zvol(volume: VolumePart) -> ZvolType:
    if isinstance(volume.type, ZvolType):
        return volume.type
    raise PreflightError(
        f"volume {volume.role} ({volume.dataset}) is a {volume.type.kind}, not a zvol", hint="restore another backup"
    )


def _receiving(
    instance: Instance, chain: Sequence[Manifest], top: str, places: dict[str, str]
) -> tuple[MachineStep, ...]:
    volumes = [(link, volume) for link in chain for volume in link.volumes]
    for _, volume in volumes:
        _zvol(volume)
    look = pool_needs(MachinePreflight, chain, top, backups=tuple(link.backup_id for link in chain))
    received = [(link, volume) for link, volume in volumes if volume.role in places]
    unmounted = {role: (dataset, "") for role, dataset in places.items()}
    return (look, MakeTop(top), *receives_of(received, unmounted, chain_checks.key_location(instance)))


def _checking(manifest: Manifest, places: dict[str, str]) -> CheckVolumes:
    return CheckVolumes(
        tuple(
            VolumeCheck(
                role=volume.role,
                dataset=places[volume.role],
                snapshot=volume.snapshot,
                guid=volume.guid,
                size=_zvol(volume).volsize,
                properties=data_values(volume.type.properties, "volume"),
            )
            for volume in manifest.volumes
        )
    )


@dataclass(frozen=True)
class MachineWork(RestoreWork[MachineRestorePlan]):
    """A restore of a machine that is being executed."""

    connect: Connect = connected

    def remove(self) -> None:
        """Remove the domain and the datasets of this restore."""
        remove_all(self.settings, self.plan, self.connect)


@dataclass(frozen=True)
class MachineRestoreResult:
    """A restored machine. If `next_step` is set, the restore stopped before this step and continues with --resume."""

    plan: MachineRestorePlan
    done: tuple[CompletedStep, ...]
    next_step: MachineStep | None = None


def examine(work: MachineWork) -> list[FitnessFinding]:
    """Return the findings of the plan's preflight; change nothing."""
    return [finding for step in work.plan.steps if isinstance(step, MachinePreflight) for finding in _judge(work, step)]


def _judge(work: MachineWork, step: MachinePreflight) -> list[FitnessFinding]:
    findings = judge_pool(step)
    for backup_id in step.backups:
        findings += chain_checks.judge_chunks(work.instance, work.repository, work.manifest(backup_id))
    if step.raw:
        is_cold, last = chain_checks.is_archived(findings), work.manifest(step.backups[-1])
        findings += chain_checks.judge_key(work.instance, work.repository, last, is_archived=is_cold)
    return [*findings, *chain_checks.judge_damage(work.instance, work.repository, step.backups)]


def restore(
    settings: Settings,
    instance: Instance,
    request: MachineRestoreRequest,
    confirm: Confirm = confirm_every_step,
    stop_after: str | None = None,
    connect: Connect = connected,
) -> MachineRestoreResult:
    """Plan a restore and execute that plan. Raises the errors of `make` and `execute`."""
    repository = instance.open_repository()
    planned = make(settings, instance, repository, request, connect)
    return MACHINE.execute(MachineWork(settings, instance, repository, planned, connect), confirm, stop_after)


def resume(
    settings: Settings,
    instance: Instance,
    top: str | None,
    confirm: Confirm = confirm_every_step,
    stop_after: str | None = None,
    *,
    with_foreign_snapshots: bool = False,
    connect: Connect = connected,
) -> MachineRestoreResult:
    """Continue an interrupted restore. Raises the errors of `RestoreKind.resume`."""

    def work(own: Instance, plan: MachineRestorePlan) -> MachineWork:
        return MachineWork(settings, own, own.open_repository(), plan, connect)

    may_go = with_foreign_snapshots
    return MACHINE.resume(settings, instance, top, work, confirm, stop_after, foreign_may_go=may_go)


def abandon(
    settings: Settings,
    instance: Instance,
    top: str | None,
    *,
    with_foreign_snapshots: bool = False,
    connect: Connect = connected,
) -> MachineRestorePlan:
    """Abandon an interrupted restore.

    Its domain, its datasets and its journal are removed. Before that, each dataset is checked to belong to the restore.
    """
    journals = MachineJournals(settings.restore.journal)
    with exclusive_journal(instance, journals, top) as journal:
        clear_foreign(journal.plan, may_go=with_foreign_snapshots)
        give_up(instance, journals, journal, lambda: remove_all(settings, journal.plan, connect))
    return journal.plan


def _check(work: MachineWork, step: CheckVolumes) -> None:
    """Compare GUIDs and sizes with the manifest, restore the properties, and wait for the devices.

    Raises:
        DamagedError: a zvol has another GUID or size.
        ConsistencyError: a device does not belong to its zvol.
    """
    # Free memory, because the machine may start next.
    work.memory.clear()
    destruction.prove([part.dataset for part in step.parts], work.mark)
    seen = zvols.describe([part.dataset for part in step.parts])
    for part in step.parts:
        name = f"{part.dataset}@{part.snapshot}"
        if datasets.guid(name) != part.guid or seen[part.dataset].size != part.size:
            raise DamagedError(
                f"{name} was received with another GUID or size than {part.guid}, {part.size} bytes",
                hint="the repository's chain is inconsistent; restore another backup",
            )
    for part in step.parts:
        marks = {INSTANCE_PROPERTY: work.instance.name, BACKUP_PROPERTY: work.plan.backup_id}
        tune(part.dataset, part.properties, marks, work.events.warn)
    encryption.unlock(work.plan.with_own_keys)
    for part in step.parts:
        zvols.wait_for_device(part.dataset, work.settings.vms.device_timeout)


def _define(work: MachineWork, step: DefineDomain) -> None:
    """Define the domain, unless this restore defined it before.

    Raises:
        ExistsError: a domain that this restore did not define has the name.
    """
    with work.connect(work.settings.vms.uri) as hypervisor:
        if _defined(hypervisor, work.plan) is not None:
            return
        refuse_taken(hypervisor, step.domain)
        hypervisor.make_isolated_network()
        hypervisor.define(step.xml)


HANDLERS: Handlers = {
    MachinePreflight: lambda work, step: refuse_unfit(_judge(work, step), work.events),
    # The zvols inherit this property, so that this host does not scan them for partitions (zfsprops(7)).
    MakeTop: partial(make_top, more={"volmode": "dev"}),
    Receive: receive,
    CheckVolumes: _check,
    DefineDomain: _define,
}
"""The function for each step of a machine's restore."""
MACHINE: RestoreKind[MachineJournal, MachineRestoreResult] = RestoreKind(
    MachineJournals,
    MachineJournal,
    HANDLERS,
    MachinePreflight,
    lambda run: MachineRestoreResult(run.journal.plan, run.journal.done, run.journal.next_step),
)


def _defined(hypervisor: Hypervisor, planned: MachineRestorePlan) -> KnownDomain | None:
    """Return the domain if this restore defined it.

    Raises:
        PreflightError: a domain that this restore did not define has the UUID.
    """
    known = hypervisor.find(planned.define.uuid) if planned.define is not None else None
    if known is not None and not is_of_restore(known.xml, planned.restore_id):
        raise PreflightError(
            f"the domain {known.domain.name} has the UUID {known.domain.uuid} of the restored machine, but not its"
            " mark",
            hint="see `virsh dumpxml`; nothing of it was changed",
        )
    return known


def remove_all(settings: Settings, planned: MachineRestorePlan, connect: Connect = connected) -> None:
    """Remove the domain of this restore, and its datasets with their snapshots. Nothing else is removed.

    Raises:
        PreflightError: the machine was started; nothing was removed.
    """
    if planned.define is not None:
        with connect(settings.vms.uri) as hypervisor:
            known = _defined(hypervisor, planned)
            if known is not None and known.state is not MachineState.OFF:
                raise PreflightError(
                    f"the restored machine {known.domain.name} is {known.state}",
                    hint="shut it down first (`virsh shutdown`)",
                )
            if known is not None:
                hypervisor.undefine(planned.define.uuid)
    remove_datasets(planned)
