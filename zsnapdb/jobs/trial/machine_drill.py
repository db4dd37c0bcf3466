"""Runs a drill of a virtual machine: restores it to scratch zvols, boots it offline, queries it and removes it.

The guest runs untrusted programs. It cannot reach any other system, because its network links are down and its network
is isolated. Its answers are parsed strictly.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zsnapdb.base.domain_types import Flavour, Position
from zsnapdb.base.errors import (
    CommandError,
    CommandTimeout,
    ConsistencyError,
    DamagedError,
    PreflightError,
    ServerError,
)
from zsnapdb.base.patterns import printable
from zsnapdb.config.settings import ProbeSettings, Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.restore import machine_restore, run_lifecycle
from zsnapdb.jobs.restore.machine_restore import Connect, MachineRestoreRequest, MachineWork
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.jobs.trial.drill import BOOT, DRILL, PROBES, TABLES, DrillDraw, DrillLog, DrillRequest, DrillResult, draw
from zsnapdb.jobs.trial.server_checks import CHECKED, CheckOutcome, check_probes, sized
from zsnapdb.mysql import vm_guest_client as questions
from zsnapdb.mysql.vm_guest_client import Rows
from zsnapdb.planning.restore.plan import MachineRestorePlan
from zsnapdb.planning.restore.steps import DefineDomain
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.server_family import family
from zsnapdb.planning.trial.drill import (
    GuestServerAnswer,
    InsideResult,
    InsideVerdict,
    binlog_of_start,
    judge_identity,
    judge_position,
    judge_table,
    sample_whole,
)
from zsnapdb.planning.vm.domain import parse
from zsnapdb.planning.vm.restored_domain import is_of_restore
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.manifest_source import BoundPart, PositionPart, ServerInsidePart
from zsnapdb.repository.repository import Repository
from zsnapdb.vm import guest_agent
from zsnapdb.vm.guest_agent import Agent
from zsnapdb.vm.hypervisor import Hypervisor, MachineState, connected
from zsnapdb.zfs import datasets

Sleep = Callable[[float], None]
_ANSWER_POLL_SECONDS = 1.0
_LONGEST_ERROR = 300
_LONGEST_ANSWER = 1000
_UNANSWERED = (ServerError, CommandError, CommandTimeout, DamagedError)
_TABLES_AT_ONCE, _MOST_TABLES = 50, 1_000_000
_LONGEST_POSITION = 1 << 16
"""The maximum number of characters of a guest's answer in the evidence. A GTID set of many servers is shorter."""


@dataclass(frozen=True)
class InsideClient:
    """The command line of a client in a guest, which queries the guest's server, and the time limit in seconds.

    The client reads statements from stdin. If it needs a password, it reads the password from a file in the guest.
    """

    hypervisor: Agent
    uuid: str
    argv: tuple[str, ...]
    timeout: float
    sleep: Sleep = time.sleep

    def query(self, sql: str) -> Rows:
        """Run a statement with the client, and return the rows of the answer.

        Raises:
            ServerError: the client ends with an error.
            CommandError: the agent does not run the client.
            CommandTimeout: the client does not answer within the time limit.
            DamagedError: the agent's answer cannot be read.
        """
        return self._ask(sql, time.monotonic() + self.timeout)

    def query_once_up(self, sql: str, patience: float) -> Rows:
        """Wait until the server answers, run a statement, and return the rows of the answer.

        Raises:
            ServerError: there is no answer within `patience` seconds.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                return self._ask(sql, max(deadline, time.monotonic() + self.timeout))
            except NotUpError as error:
                if time.monotonic() >= deadline:
                    raise ServerError(
                        f"the server in the machine did not answer within {patience:g} s (vms.start_timeout):"
                        f" {error.message}",
                        hint="restore the backup, and look at the server's log in the machine",
                    ) from error
            self.sleep(_ANSWER_POLL_SECONDS)

    def _ask(self, sql: str, deadline: float) -> Rows:
        argv = (*self.argv, *questions.CLIENT_OPTIONS)
        end = guest_agent.run_program(self.hypervisor, self.uuid, argv, questions.question(sql), deadline, self.sleep)
        if end.is_good:
            return questions.rows(end.out)
        said = printable(end.err.strip() or f"exit status {end.code}")[:_LONGEST_ERROR]
        kind = NotUpError if questions.is_not_up(end.err) else ServerError
        raise kind(
            f"{self.argv[0]} in the machine: {said}",
            hint="set client under [instance.NAME.vm] to a command that logs in, such as with --defaults-file",
        )


class NotUpError(ServerError):
    """The server in the machine is not answering yet."""


def ask(client: InsideClient, patience: float, part: ServerInsidePart | None) -> GuestServerAnswer:
    """Wait until the server answers, and return its answers about itself. Raises the errors of `InsideClient`.

    `part` is the server's description in the backup, if there is one.
    """
    known = questions.variables(client.query_once_up(questions.VARIABLES, patience))
    if not questions.has_binlog(known):
        return questions.answered(known, (), None, None)
    logs = questions.binlogs(client.query(questions.BINLOGS))
    alone = questions.answered(known, logs, None, None)
    published = (part.after or part.before).binlog_file if part is not None else None
    start = binlog_of_start([name for name, _ in logs], published)
    begins = client.query(questions.beginning(start))
    now = client.query(questions.executed(alone.flavour))
    listed = questions.recovered(alone.flavour, begins)
    return questions.answered(known, logs, listed, questions.gtids_now(alone.flavour, now))


def _bound_position(flavour: Flavour, bound: BoundPart) -> Position:
    """Return the parsed form of a position in a manifest.

    Raises:
        DamagedError: the GTIDs of the position cannot be read.
    """
    try:
        return PositionPart(**dict(bound), source="manifest").position(flavour)
    except ValueError as error:
        raise DamagedError(
            f"the manifest says that the server had published {printable(bound.gtids or '')[:200]}, which is not a"
            f" GTID set",
            hint="the manifest was altered, or a newer zsnapdb wrote it",
        ) from error


def _outcome(what: str, verdict: InsideVerdict) -> CheckOutcome:
    outcome = Outcome.PASSED if verdict.result is InsideResult.PROVED else Outcome.FAILED
    return CheckOutcome(what, outcome, verdict.reason)


def _tables(client: InsideClient) -> Iterator[CatalogueTable]:
    for number in itertools.count(step=questions.TABLES_AT_ONCE):
        page = questions.tables(client.query(questions.tables_from(number)))
        yield from page
        if len(page) < questions.TABLES_AT_ONCE or number > _MOST_TABLES:
            return


def check_tables(client: InsideClient, budget: int | None, seed: int) -> Iterator[CheckOutcome]:
    """Let the server check tables of about `budget` bytes in total. If `budget` is None, all tables are checked.

    Sequences are omitted, because they cannot be checked.
    """
    listed = list(_tables(client))
    known = {table.quoted: table for table in listed if table.row_place in CHECKED and not table.is_sequence}
    chosen = [known[item.name] for item in sample_whole([sized(table) for table in known.values()], budget, seed)]
    for first in range(0, len(chosen), _TABLES_AT_ONCE):
        batch = chosen[first : first + _TABLES_AT_ONCE]
        rows = questions.check_results(batch, client.query(questions.check_of(batch)))
        for table in batch:
            wrong = judge_table(rows[table.quoted])
            outcome = Outcome.PASSED if wrong is None else Outcome.DAMAGED
            yield CheckOutcome(table.quoted[:_LONGEST_ANSWER], outcome, (wrong or "")[:_LONGEST_ANSWER])


@dataclass(frozen=True)
class DrilledMachine:
    """An existing scratch copy of a drilled machine: the instance, and the dataset that contains the copy."""

    instance: str
    container: str


def copies(settings: Settings) -> Iterator[DrilledMachine]:
    """Yield the scratch copies of all instances that are machines, including copies that a drill is using."""
    for name, instance in settings.instance.items():
        if instance.vm is None:
            continue
        above = [instance.drill.dataset] if instance.drill.dataset is not None else []
        homes = [f"{dataset}/{name}" for dataset in above]
        homes += [f"{pool}/zsnapdb/scratch/{name}" for pool in datasets.pools()]
        for home in dict.fromkeys(homes):
            for container in scratch_datasets.containers_in(f"{home}/{DRILL}"):
                yield DrilledMachine(name, container)


def lock_name(copy: DrilledMachine) -> str:
    """Return the name of the lock that a drill of the machine holds (`jobs/base/run_locks.py`, lock_instance)."""
    return f"{DRILL}-{copy.instance}"


def ending(settings: Settings, connect: Connect = connected) -> scratch_datasets.EndUsers:
    """Return a function that powers off and undefines the domains of a scratch copy.

    The caller runs this function before it destroys the datasets of the copy. A domain belongs to the copy if its
    metadata contains both its own UUID and the restore id in the mark of the copy's datasets. No other domain is
    changed.

    Raises:
        PreflightError: libvirt does not answer.
    """

    def end(container: str) -> None:
        restores = _restores(container)
        if not restores:
            return
        with connect(settings.vms.uri) as hypervisor:
            for known in hypervisor.domains():
                if any(is_of_restore(known.xml, restore_id) for restore_id in restores):
                    hypervisor.power_off(known.domain.uuid)
                    hypervisor.undefine(known.domain.uuid)

    return end


def _restores(container: str) -> set[str]:
    if not datasets.exists(container):
        return set()
    properties = datasets.children(container, [RESTORED_PROPERTY]).values()
    marks = {found[RESTORED_PROPERTY] for found in properties}
    return {mark.value for mark in marks if mark.is_local}


ASK = "ask"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class MachineDrillPlan(DrillDraw):
    """The plan of a machine's drill: the restore, and the time limit of the boot in seconds.

    `client` is the command line that queries the server in the machine, or None if no server is known. `server`
    contains the positions that the server published before and after the snapshot. If the server was not locked during
    the snapshot, `server` is None, because these positions are unknown.
    """

    restore: MachineRestorePlan
    define: DefineDomain
    patience: float
    client: tuple[str, ...] | None
    server: ServerInsidePart | None
    probes: tuple[ProbeSettings, ...]


def plan(
    settings: Settings, instance: Instance, repository: Repository, request: DrillRequest, connect: Connect = connected
) -> MachineDrillPlan:
    """Return the plan of a drill; change nothing. Also raises the errors of the plan of a restore.

    Raises:
        PreflightError: no domain can be defined from the backup, or the machine has no guest agent.
    """
    drawn, to = draw(instance, repository, request)
    configured = instance.settings.vm
    restore = MachineRestoreRequest(
        to,
        drawn.place.top,
        accepts_older=request.accepts_older,
        domain=f"{DRILL}-{drawn.drill_id.lower()}",
        makes_parent=True,
        memory=configured.drill_memory if configured is not None else None,
    )
    planned = machine_restore.make(settings, instance, repository, restore, connect)
    if planned.define is None:
        raise PreflightError(
            f"backup {planned.backup_id} cannot be drilled: {'; '.join(planned.notes)}",
            hint="restore it (`zsnapdb restore`), and define a domain for its disks by hand",
        )
    if not parse(planned.define.xml).has_agent:
        raise PreflightError(
            f"the machine of {instance.name} has no channel of a guest agent, so a drill cannot check that it boots",
            hint="add the channel org.qemu.guest_agent.0, install qemu-guest-agent in the machine, and back it up",
        )
    server = machine_restore.machine_source(repository.manifest(instance.name, planned.backup_id)).server
    return MachineDrillPlan(
        **vars(drawn),
        restore=planned,
        define=planned.define,
        patience=settings.vms.start_timeout,
        client=client_of(configured.client if configured is not None else None, server),
        server=server,
        probes=instance.settings.drill.probe,
    )


def refuse_unfit(work: MachineWork) -> None:
    """Raise the error that a drill with this plan would raise now; change nothing.

    Warnings are reported as events of the instance.
    """
    run_lifecycle.refuse_unfit(machine_restore.examine(work), work.events)


def client_of(configured: tuple[str, ...] | None, server: ServerInsidePart | None) -> tuple[str, ...] | None:
    """Return the command line of the client in the guest; None if no server is known.

    If no client is configured, the standard client of the server's family is used. The agent runs the client as root.
    MariaDB accepts the operating system's root on its socket. MySQL accepts this user only if the MySQL account root
    uses auth_socket.
    """
    if configured is not None or server is None:
        return configured
    kind = family(server.flavour)
    return (kind.client_programs[0], *kind.local_client_options)


def drill(settings: Settings, instance: Instance, request: DrillRequest, connect: Connect = connected) -> DrillResult:
    """Plan a drill and execute that plan. Raises the errors of `plan` and `execute`."""
    repository = instance.open_repository()
    planned = plan(settings, instance, repository, request, connect)
    return execute(MachineWork(settings, instance, repository, planned.restore, connect), planned)


def execute(work: MachineWork, planned: MachineDrillPlan, sleep: Sleep = time.sleep) -> DrillResult:
    """Execute exactly this plan and store the evidence. Afterwards the machine and its zvols are removed.

    Problems of the backup are recorded in the evidence. An error is raised only for a problem that the backup did not
    cause, such as a missing repository, too little space, or a failure of libvirt.
    """
    instance, settings = work.instance, work.settings
    log = DrillLog(instance.host.now())
    end_users = ending(settings, work.connect)
    with scratch_datasets.ephemeral(instance, planned.place, settings.restore.mount_root, end_users):
        if _is_restored(work, planned, log):
            with work.connect(settings.vms.uri) as hypervisor:
                if _boot(hypervisor, work, planned, log, sleep):
                    _ask(hypervisor, work, planned, log, sleep)
        return log.store(instance, work.repository, planned, planned.restore.backup_id)


def _is_restored(work: MachineWork, planned: MachineDrillPlan, log: DrillLog) -> bool:
    backup_id, plan = planned.restore.backup_id, planned.restore
    if (
        log.restored(work.instance, work.repository, backup_id, lambda: machine_restore.MACHINE.execute_once(work))
        is None
    ):
        return False
    finding = f"GUIDs and sizes are those of the backup; its disks have the grade {plan.grade} ({plan.grade_reason})"
    log.add("restore", CheckOutcome(backup_id, Outcome.PASSED, finding))
    log.notes += plan.notes
    return True


def _boot(hypervisor: Hypervisor, work: MachineWork, planned: MachineDrillPlan, log: DrillLog, sleep: Sleep) -> bool:
    """Start the machine and wait for its agent. If the agent does not answer, record the reason and return False.

    Raises:
        CommandError: libvirt does not start the machine. This is not a fault of the backup.
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


def _ask(hypervisor: Hypervisor, work: MachineWork, planned: MachineDrillPlan, log: DrillLog, sleep: Sleep) -> None:
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
            answer = ask(client, planned.patience, planned.server)
            _note_position(planned, answer, log)
        work.events.tell("checking tables in the machine")
        log.run(TABLES, "CHECK TABLE", "table", check_tables(client, planned.budget, planned.seed))
        probes = check_probes(planned.probes, client.query, _UNANSWERED, _LONGEST_ANSWER)
        log.run(PROBES, f"{len(planned.probes)} probe(s)", "probe", probes)
    except (ServerError, CommandError, DamagedError) as error:
        finding = f"{error.message}; {error.hint}" if error.hint else error.message
        log.add("server", CheckOutcome("the server inside", Outcome.FAILED, finding))
        log.notes.append("the machine boots; of its server nothing is proved beyond the checks that passed")
    if not planned.probes:
        log.note_no_probes(work.instance)


def _note_position(planned: MachineDrillPlan, answer: GuestServerAnswer, log: DrillLog) -> None:
    log.server_version = f"{answer.flavour.value} {answer.version}"
    text = str(answer.recovered) if answer.recovered is not None else ""
    log.position = text if len(text) <= _LONGEST_POSITION else f"{text[:_LONGEST_POSITION]}…"
    part = planned.server
    if part is None:
        log.add("server", CheckOutcome("the server inside", Outcome.PASSED, f"{log.server_version} answers"))
        log.notes.append("the position was not checked: the server was not locked when it was backed up")
        return
    identity = judge_identity(part.flavour, part.server_uuid, part.server_id, answer)
    log.add("server", _outcome("the server inside", identity))
    before = _bound_position(part.flavour, part.before)
    after = _bound_position(part.flavour, part.after) if part.after is not None else None
    verdict = judge_position(before, after, answer)
    if verdict.result is InsideResult.UNPROVABLE:
        log.notes.append(f"the position cannot be proved: {verdict.reason}")
        return
    log.add("position", _outcome(planned.restore.backup_id, verdict))


def _wait_for_agent(hypervisor: Hypervisor, planned: MachineDrillPlan, sleep: Sleep) -> None:
    """Wait until the guest agent answers.

    Raises:
        ConsistencyError: the machine powers off before its agent answers.
        CommandTimeout: the agent does not answer in time.
    """
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
