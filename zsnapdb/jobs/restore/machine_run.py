"""A restore of a virtual machine: receive all its zvols, check them, define its domain. Exactly the plan is executed.

A journal notes the finished steps. The machine is not started: it is whoever was backed up, until its links are up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY
from zsnapdb.jobs.host.dataset_tuning import tune
from zsnapdb.jobs.record.once_record import OnceRecords
from zsnapdb.jobs.restore import machine_plan, newest, raw_keys
from zsnapdb.jobs.restore.machine_plan import Connect, MachineRestoreRequest, refuse_existing, refuse_taken
from zsnapdb.jobs.restore.preflight import judge_pool
from zsnapdb.jobs.restore.receiving import make_top, receive, restored_mark, tell_what_stays
from zsnapdb.jobs.restore.restore_run import Confirm, RestoreRun, always, refuse_unfit
from zsnapdb.jobs.restore.under_way import alone, alone_with_journal, clear_foreign, refuse_begun
from zsnapdb.jobs.steps.journal import Done, Executor, Handlers
from zsnapdb.jobs.steps.restore_journal import MachineJournal, MachineJournals
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.machine import (
    CheckVolumes,
    DefineDomain,
    MachinePreflight,
    MachineRestorePlan,
    MachineStep,
)
from zsnapdb.planning.restore.steps import MakeTop, Receive
from zsnapdb.planning.vm.restored_domain import is_of_restore
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.memory import TransferMemory
from zsnapdb.vm.hypervisor import Hypervisor, connected
from zsnapdb.zfs import datasets, encryption, owned, zvols

__all__ = [
    "NO_PARTITIONS",
    "MachineRestoreResult",
    "MachineStep",
    "MachineWork",
    "abandon",
    "examine",
    "execute",
    "execute_without_journal",
    "remove_all",
    "restore",
    "resume",
]

NO_PARTITIONS = {"volmode": "dev"}
"""On the dataset above the zvols, which inherit it: this host does not look for partitions in them (zfsprops(7))."""


@dataclass(frozen=True)
class MachineWork:
    """A restore of a machine that is being executed.

    `is_first_run`: the target did not exist when this run began, so no earlier run left anything in it.
    """

    settings: Settings
    instance: Instance
    repository: Repository
    plan: MachineRestorePlan
    connect: Connect = connected
    memory: TransferMemory = field(default_factory=TransferMemory)
    is_first_run: bool = False

    @property
    def events(self) -> Events:
        """What takes the events of this restore."""
        return self.instance.events

    @property
    def is_continued(self) -> bool:
        """Never: a machine is restored to a backup, and no further."""
        return False

    def is_irreversible(self) -> bool:
        """Never: a restored machine stands beside the one that was backed up."""
        return False

    def remove(self) -> None:
        """Remove the domain and the datasets that this restore made."""
        remove_all(self.settings, self.plan, self.connect)

    def manifest(self, backup_id: str) -> Manifest:
        """Return a backup's manifest."""
        return self.repository.manifest(self.instance.name, backup_id)


@dataclass(frozen=True)
class MachineRestoreResult:
    """A restored machine. `next_step`: the restore was stopped before this step, and continues with --resume."""

    plan: MachineRestorePlan
    done: tuple[Done, ...]
    next_step: MachineStep | None = None


def examine(work: MachineWork) -> list[FitnessFinding]:
    """Return the findings of the plan's preflight; nothing is changed."""
    return [finding for step in work.plan.steps if isinstance(step, MachinePreflight) for finding in _judge(work, step)]


def _judge(work: MachineWork, step: MachinePreflight) -> list[FitnessFinding]:
    findings = judge_pool(step)
    for backup_id in step.backups:
        findings += newest.judge_chunks(work.instance, work.repository, work.manifest(backup_id))
    if step.raw:
        findings += raw_keys.judge(work.instance, work.repository, work.manifest(step.backups[-1]))
    return [*findings, *newest.judge_damage(work.instance, work.repository, step.backups)]


def restore(
    settings: Settings,
    instance: Instance,
    request: MachineRestoreRequest,
    confirm: Confirm = always,
    stop_after: str | None = None,
    connect: Connect = connected,
) -> MachineRestoreResult:
    """Plan a restore and execute that plan. The errors are those of `machine_plan.make` and `execute`."""
    repository = instance.open_repository()
    planned = machine_plan.make(settings, instance, repository, request, connect)
    return execute(MachineWork(settings, instance, repository, planned, connect), confirm, stop_after)


def execute(work: MachineWork, confirm: Confirm = always, stop_after: str | None = None) -> MachineRestoreResult:
    """Carry out the steps of exactly this plan, with a journal; nothing is planned again.

    ExistsError if the target was made since the plan; PreflightError if a restore to the target is under way.
    `RestoreRun.carry_out` says what happens on other errors.
    """
    journals = MachineJournals(work.settings.restore.journal)
    with alone(work.instance, work.plan):
        refuse_begun(journals, work.plan)
        refuse_existing(work.plan.top)
        run = _run(replace(work, is_first_run=True))
        journal = MachineJournal(work.plan, run_id=work.instance.host.run_id())
        return _result(run.carry_out(journals, journal, confirm, stop_after))


def execute_without_journal(work: MachineWork) -> MachineRestoreResult:
    """Carry out the steps of exactly this plan for an ephemeral copy. Any error removes everything that was made.

    ExistsError if the target was made since the plan.
    """
    with alone(work.instance, work.plan):
        refuse_existing(work.plan.top)
        return _result(_run(replace(work, is_first_run=True)).carry_out_once(MachineJournal(work.plan)))


def resume(
    settings: Settings,
    instance: Instance,
    top: str | None,
    confirm: Confirm = always,
    stop_after: str | None = None,
    *,
    with_foreign_snapshots: bool = False,
    connect: Connect = connected,
) -> MachineRestoreResult:
    """Continue an interrupted restore. The interrupted step begins anew.

    PreflightError, before anything is changed, if others made snapshots on its zvols and they are not let go.
    """
    journals = MachineJournals(settings.restore.journal)
    with alone_with_journal(instance, journals, top) as journal:
        clear_foreign(journal.plan, may_go=with_foreign_snapshots)
        instance = instance.with_repository_of(settings, journal.plan.repository_name)
        work = MachineWork(settings, instance, instance.open_repository(), journal.plan, connect)
        return _result(_run(work).carry_out(journals, journal, confirm, stop_after))


def abandon(
    settings: Settings,
    instance: Instance,
    top: str | None,
    *,
    with_foreign_snapshots: bool = False,
    connect: Connect = connected,
) -> MachineRestorePlan:
    """Give an interrupted restore up: remove its domain and its datasets, each proved to be ours, and its journal."""
    journals = MachineJournals(settings.restore.journal)
    with alone_with_journal(instance, journals, top) as journal:
        clear_foreign(journal.plan, may_go=with_foreign_snapshots)
        OnceRecords(instance.host).note_given_up(journal.run_id)
        remove_all(settings, journal.plan, connect)
        tell_what_stays(instance.events, {journal.plan.top, *journal.plan.datasets.values()})
        journals.forget(journal.plan.top)
    return journal.plan


def _look_first(work: MachineWork, step: MachinePreflight) -> None:
    """Check what the restore depends on. Nothing is changed before."""
    refuse_unfit(_judge(work, step), work.events)


def _make_top(work: MachineWork, step: MakeTop) -> None:
    make_top(work, step, NO_PARTITIONS)


def _check(work: MachineWork, step: CheckVolumes) -> None:
    """Compare GUIDs and sizes with the manifest, restore the properties, and wait for the devices.

    DamagedError if a zvol is another one; ConsistencyError if a device does not say that it is of its zvol.
    """
    # The machine that may start next needs the memory more.
    work.memory.clear()
    owned.prove([part.dataset for part in step.parts], restored_mark(work.plan))
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
    """Define the domain, unless this restore defined it before. ExistsError if somebody else's has its name."""
    with work.connect(work.settings.vms.uri) as hypervisor:
        if _defined(hypervisor, work.plan) is not None:
            return
        refuse_taken(hypervisor, step.domain)
        hypervisor.make_isolated_network()
        hypervisor.define(step.xml)


HANDLERS: Handlers = {
    MachinePreflight: _look_first,
    MakeTop: _make_top,
    Receive: receive,
    CheckVolumes: _check,
    DefineDomain: _define,
}
"""What carries out each step of the restore of a machine."""


def _run(work: MachineWork) -> RestoreRun[MachineJournal]:
    return RestoreRun(work, HANDLERS, (MachinePreflight,))


def _result(executor: Executor[MachineJournal]) -> MachineRestoreResult:
    journal = executor.journal
    step = None if journal.next_step is None else journal.plan.step(journal.next_step.name)
    return MachineRestoreResult(journal.plan, journal.done, step)


def _defined(hypervisor: Hypervisor, planned: MachineRestorePlan) -> str | None:
    """Return the UUID of the domain if this restore defined it. PreflightError if somebody else's has its UUID."""
    step = planned.define
    known = hypervisor.find(step.uuid) if step is not None else None
    if known is None or step is None:
        return None
    if not is_of_restore(known.xml, planned.restore_id):
        raise PreflightError(
            f"the domain {known.domain.name} has the UUID {step.uuid} of the restored machine, but not its mark",
            hint="see `virsh dumpxml`; nothing of it was changed",
        )
    return step.uuid


def remove_all(settings: Settings, planned: MachineRestorePlan, connect: Connect = connected) -> None:
    """Remove the domain and the datasets that this restore made, with their snapshots. All others stay.

    PreflightError, and nothing is removed, if somebody started the machine.
    """
    if planned.define is not None:
        with connect(settings.vms.uri) as hypervisor:
            uuid = _defined(hypervisor, planned)
            if uuid is not None:
                _refuse_running(hypervisor, uuid)
                hypervisor.undefine(uuid)
    mark = restored_mark(planned)
    places = {planned.top, *planned.datasets.values()}
    owned.destroy_datasets([name for name in places if owned.is_ours(name, mark)], mark, with_snapshots=True)


def _refuse_running(hypervisor: Hypervisor, uuid: str) -> None:
    known = hypervisor.find(uuid)
    if known is not None and known.state.value != "off":
        raise PreflightError(
            f"the restored machine {known.domain.name} is {known.state}", hint="shut it down first (`virsh shutdown`)"
        )
