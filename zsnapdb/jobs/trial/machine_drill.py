"""A drill of a virtual machine: restore it to scratch zvols, boot it without a network, ask it, remove all of it.

The guest runs what others wrote. It reaches nothing: its links are down and its network leads nowhere. What it answers
is read by its form.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from zsnapdb.base.errors import (
    CommandError,
    CommandTimeout,
    ConsistencyError,
    DamagedError,
    PreflightError,
    ServerError,
)
from zsnapdb.config.settings import ProbeSettings, Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import machine_plan, machine_run, restore_run
from zsnapdb.jobs.restore.machine_plan import Connect, MachineRestoreRequest
from zsnapdb.jobs.restore.machine_run import MachineWork
from zsnapdb.jobs.trial import machine_checks, machine_scratch, scratch, scratch_restore
from zsnapdb.jobs.trial.drill import PROBES, TABLES
from zsnapdb.jobs.trial.drill_log import BOOT, DrillLog, DrillResult, DrillSubject
from zsnapdb.jobs.trial.machine_checks import InsideClient
from zsnapdb.jobs.trial.machine_scratch import DRILL
from zsnapdb.jobs.trial.server_checks import CheckOutcome
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.machine import DefineDomain, MachineRestorePlan
from zsnapdb.planning.trial.drill import choose_backup, seed_of
from zsnapdb.planning.trial.inside import InsideAnswer, InsideResult
from zsnapdb.planning.vm.domain import parse
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.machine_source import ServerInsidePart
from zsnapdb.repository.repository import Repository
from zsnapdb.vm.hypervisor import Hypervisor, MachineState, connected

ASK = "ask"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class MachineDrillPlan:
    """What a drill of a machine will do: how it restores, and how many seconds the machine may take to boot.

    `client` is the command line that asks the server inside (None: no server is known, so none is asked). `server` has
    what the server had published around the snapshot (None: it was not locked, so nothing is known). About `budget`
    bytes of its tables are checked (None: all).
    """

    drill_id: str
    requested: str
    restore: MachineRestorePlan
    define: DefineDomain
    place: scratch.Scratch
    seed: int
    patience: float
    client: tuple[str, ...] | None
    server: ServerInsidePart | None
    probes: tuple[ProbeSettings, ...]
    budget: int | None


@dataclass(frozen=True)
class MachineDrillRequest:
    """The requested drill: `latest`, a backup's id or `random`, which the seed decides (None: a new seed).

    `whole`: every table is checked, and no sample.
    """

    to: str = "latest"
    seed: int | None = None
    accepts_older: bool = False
    whole: bool = False


def plan(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    request: MachineDrillRequest,
    connect: Connect = connected,
) -> MachineDrillPlan:
    """Return the plan of a drill; nothing is changed.

    The errors are those of the plan of a restore. PreflightError too if no domain can be defined of the backup, or if
    the machine has no guest agent.
    """
    drill_id = instance.host.new_backup_id()
    seed = seed_of(drill_id) if request.seed is None else request.seed
    to = (
        choose_backup(scratch_restore.choosable_ids(instance, repository), seed)
        if request.to == "random"
        else request.to
    )
    above = scratch.home(instance, scratch_restore.datasets_of_newest(instance, repository))
    place = scratch.place(above, drill_id, DRILL)
    machine = instance.settings.vm
    restore = MachineRestoreRequest(
        to,
        place.top,
        accepts_older=request.accepts_older,
        domain=f"{DRILL}-{drill_id.lower()}",
        makes_parent=True,
        memory=machine.drill_memory if machine is not None else None,
    )
    planned = machine_plan.make(settings, instance, repository, restore, connect)
    if planned.define is None:
        raise PreflightError(
            f"backup {planned.backup_id} cannot be drilled: {'; '.join(planned.notes)}",
            hint="restore it (`zsnapdb restore`), and define a domain for its disks by hand",
        )
    if not parse(planned.define.xml).has_agent:
        raise PreflightError(
            f"the machine of {instance.name} has no channel of a guest agent, so a drill cannot see that it boots",
            hint="add the channel org.qemu.guest_agent.0, install qemu-guest-agent in the machine, and back it up",
        )
    server = machine_plan.machine_source(repository.manifest(instance.name, planned.backup_id)).server
    return MachineDrillPlan(
        drill_id,
        request.to,
        planned,
        planned.define,
        place,
        seed,
        settings.vms.start_timeout,
        client_of(machine.client if machine is not None else None, server),
        server,
        instance.settings.drill.probe,
        None if request.whole else instance.settings.drill.sample,
    )


def refuse_unfit(work: MachineWork) -> None:
    """Raise the error with which a drill by the plan of this work would be refused now; warnings go to its events.

    Nothing is changed.
    """
    restore_run.refuse_unfit(machine_run.examine(work), work.events)


def client_of(configured: tuple[str, ...] | None, server: ServerInsidePart | None) -> tuple[str, ...] | None:
    """Return the command line of the client in the guest; None if no server is known.

    Without a setting it is the client of the server's family. The agent runs it as root, whom MariaDB lets in by its
    socket, and MySQL only if its root has auth_socket.
    """
    if configured is not None or server is None:
        return configured
    kind = family(server.flavour)
    return (kind.client_programs[0], *kind.local_client_options)


def drill(
    settings: Settings, instance: Instance, request: MachineDrillRequest, connect: Connect = connected
) -> DrillResult:
    """Plan a drill and execute that plan. The errors are those of `plan` and `execute`."""
    repository = instance.open_repository()
    planned = plan(settings, instance, repository, request, connect)
    return execute(MachineWork(settings, instance, repository, planned.restore, connect), planned)


def execute(work: MachineWork, planned: MachineDrillPlan, sleep: Callable[[float], None] = time.sleep) -> DrillResult:
    """Carry out exactly this plan and store the evidence. Afterwards nothing of the machine is left.

    What is found about the backup goes into the evidence. An error is raised only for reasons that say nothing about
    the backup: no repository, no space, a libvirt that does not start machines.
    """
    instance, settings = work.instance, work.settings
    log = DrillLog(instance.host.now())
    subject = DrillSubject(planned.drill_id, planned.requested, planned.restore.backup_id, planned.seed)
    end_users = machine_scratch.ending(settings, work.connect)
    with scratch.ephemeral(instance, planned.place, settings.restore.mount_root, end_users):
        if _is_restored(work, planned, log):
            with work.connect(settings.vms.uri) as hypervisor:
                if _boot(hypervisor, work, planned, log, sleep):
                    _ask(hypervisor, work, planned, log, sleep)
        return log.store(instance, work.repository, subject)


def _is_restored(work: MachineWork, planned: MachineDrillPlan, log: DrillLog) -> bool:
    """Restore the machine. Return False, and note why, if the backup cannot be restored.

    NotThere if the backup was removed from the repository since the plan: what is missing then is no damage.
    """
    backup_id = planned.restore.backup_id
    try:
        with scratch_restore.naming_removed(work.instance, work.repository, backup_id):
            done = machine_run.execute_without_journal(work)
    except (DamagedError, ConsistencyError, CommandError) as error:
        log.failed("restore", backup_id, error)
        return False
    log.steps += scratch_restore.evidence_of(done)
    grade = f"its disks have the grade {planned.restore.grade} ({planned.restore.grade_reason})"
    log.add("restore", CheckOutcome(backup_id, Outcome.PASSED, f"GUIDs and sizes are those of the backup; {grade}"))
    log.notes += planned.restore.notes
    return True


def _boot(
    hypervisor: Hypervisor,
    work: MachineWork,
    planned: MachineDrillPlan,
    log: DrillLog,
    sleep: Callable[[float], None],
) -> bool:
    """Start the machine and wait for its agent. Return False, and note why, if it does not answer.

    CommandError if libvirt does not start it, which says nothing about the backup.
    """
    name = planned.define.domain
    work.events.tell(f"starting {name} without a network")
    began = time.monotonic()
    hypervisor.start(planned.define.uuid)
    try:
        with log.step(BOOT, "the machine, until its guest agent answers"):
            _wait_for_agent(hypervisor, planned, sleep)
    except (ConsistencyError, CommandTimeout) as error:
        log.failed(BOOT, name, error)
        return False
    finding = f"its guest agent answered after {time.monotonic() - began:.0f} s"
    log.add(BOOT, CheckOutcome(name, Outcome.PASSED, finding))
    return True


def _ask(
    hypervisor: Hypervisor,
    work: MachineWork,
    planned: MachineDrillPlan,
    log: DrillLog,
    sleep: Callable[[float], None],
) -> None:
    """Ask the server inside, and note what is proved and what is not."""
    if planned.client is None:
        log.notes.append("pages and tables in the machine were not checked")
        log.notes.append(
            "no server was asked: the backup knows of none in the machine, and no client is configured under"
            f" [instance.{work.instance.name}.vm]"
        )
        return
    log.notes.append("pages in the machine were not checked")
    work.events.tell("asking the server in the machine")
    timeout = work.instance.settings.drill.check_timeout
    client = InsideClient(hypervisor, planned.define.uuid, planned.client, timeout, sleep)
    try:
        with log.step(ASK, f"the server inside, by {planned.client[0]} through the guest agent"):
            answer = machine_checks.ask(client, planned.patience, planned.server)
            _note_position(planned, answer, log)
        work.events.tell("checking tables in the machine")
        with log.step(TABLES, "CHECK TABLE"):
            for check in machine_checks.check_tables(client, planned.budget, planned.seed):
                log.add("table", check)
        with log.step(PROBES, f"{len(planned.probes)} probe(s)"):
            for check in machine_checks.check_probes(client, planned.probes):
                log.add("probe", check)
    except (ServerError, CommandError, DamagedError) as error:
        finding = f"{error.message}; {error.hint}" if error.hint else error.message
        log.add("server", CheckOutcome("the server inside", Outcome.FAILED, finding))
        log.notes.append("the machine boots; of its server nothing is proved beyond the checks that passed")
    if not planned.probes:
        log.notes.append(
            f"no probes are configured under [[instance.{work.instance.name}.drill.probe]]: the meaning of the data was"
            " not checked"
        )


def _note_position(planned: MachineDrillPlan, answer: InsideAnswer, log: DrillLog) -> None:
    log.server_version = f"{answer.flavour.value} {answer.version}"
    log.position = machine_checks.position_of(answer)
    if planned.server is None:
        log.add("server", CheckOutcome("the server inside", Outcome.PASSED, f"{log.server_version} answers"))
        log.notes.append("the position was not checked: the server was not locked when it was backed up")
        return
    log.add("server", machine_checks.check_server(answer, planned.server))
    verdict = machine_checks.judge_bounds(answer, planned.server)
    if verdict.result is InsideResult.UNPROVABLE:
        log.notes.append(f"the position cannot be proved: {verdict.reason}")
        return
    log.add("position", machine_checks.position_check(planned.restore.backup_id, verdict))


def _wait_for_agent(hypervisor: Hypervisor, planned: MachineDrillPlan, sleep: Callable[[float], None]) -> None:
    """Wait for the agent. ConsistencyError if the machine ends meanwhile, CommandTimeout if it does not answer."""
    deadline = time.monotonic() + planned.patience
    while not hypervisor.agent_answers(planned.define.uuid):
        known = hypervisor.find(planned.define.uuid)
        state = MachineState.MISSING if known is None else known.state
        if state is not MachineState.RUNNING:
            raise ConsistencyError(
                f"the machine is {state}, and its guest agent never answered",
                hint="restore the backup, and look at the machine's console",
            )
        if time.monotonic() >= deadline:
            raise CommandTimeout(
                f"the guest agent did not answer within {planned.patience:g} s (vms.start_timeout)",
                hint="restore the backup, and look at the machine's console",
            )
        sleep(_POLL_SECONDS)
