"""A drill of a virtual machine: restore it to scratch zvols, boot it without a network, ask it, remove all of it.

The guest runs what others wrote. It reaches nothing: its links are down and its network leads nowhere. What it answers
is read by its form.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zsnapdb.base.errors import (
    CommandError,
    CommandTimeout,
    ConsistencyError,
    DamagedError,
    PreflightError,
    ServerError,
)
from zsnapdb.base.model import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.base.patterns import printable
from zsnapdb.config.settings import ProbeSettings, Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.restore import machine_plan, machine_run, restore_run
from zsnapdb.jobs.restore.machine_plan import Connect, MachineRestoreRequest
from zsnapdb.jobs.restore.machine_run import MachineWork
from zsnapdb.jobs.trial import scratch
from zsnapdb.jobs.trial.drill import BOOT, PROBES, TABLES, DrillLog, DrillResult, DrillSubject
from zsnapdb.jobs.trial.server_checks import CHECKED, CheckOutcome, sized
from zsnapdb.mysql.schema import inside_questions as questions
from zsnapdb.mysql.schema.inside_questions import Rows
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.machine import DefineDomain, MachineRestorePlan
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.trial.drill import (
    InsideAnswer,
    InsideIdentity,
    InsideResult,
    InsideVerdict,
    binlog_of_start,
    choose_backup,
    judge_identity,
    judge_position,
    judge_probe,
    judge_table,
    sample_whole,
    seed_of,
)
from zsnapdb.planning.vm.domain import parse
from zsnapdb.planning.vm.restored_domain import is_of_restore
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.sources import BoundPart, ServerInsidePart
from zsnapdb.vm import guest_programs
from zsnapdb.vm.hypervisor import Hypervisor, MachineState, connected
from zsnapdb.vm.thawing import Agent
from zsnapdb.zfs import datasets

if TYPE_CHECKING:
    from zsnapdb.jobs.restore.machine_plan import Connect


_ANSWER_POLL_SECONDS = 1.0
_LONGEST_ERROR = 300
_LONGEST_ANSWER = 1000
_TABLES_AT_ONCE, _MOST_TABLES = 50, 1_000_000
_LONGEST_POSITION = 1 << 16
"""Of what a guest says so many characters get into the evidence. A set of GTIDs of many servers is shorter."""


@dataclass(frozen=True)
class InsideClient:
    """The client of a server in a guest: its command line, and how many seconds an answer may take.

    It gets its statements by stdin, and its password from a file in the guest, if it needs one.
    """

    hypervisor: Agent
    uuid: str
    argv: tuple[str, ...]
    timeout: float
    sleep: Callable[[float], None] = time.sleep

    def query(self, sql: str) -> Rows:
        """Return the rows of the answer.

        ServerError if the client ends with an error, CommandError if the agent does not run it, CommandTimeout if there
        is no answer in time, DamagedError if the agent's answer cannot be read.
        """
        return self._ask(sql, time.monotonic() + self.timeout)

    def query_once_up(self, sql: str, patience: float) -> Rows:
        """Return the rows of the answer, as soon as the server answers. ServerError after `patience` seconds."""
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
        end = guest_programs.run(self.hypervisor, self.uuid, argv, questions.question(sql), deadline, self.sleep)
        if end.is_good:
            return questions.rows(end.out)
        said = printable(end.err.strip() or f"exit status {end.code}")[:_LONGEST_ERROR]
        kind = NotUpError if questions.is_not_up(end.err) else ServerError
        raise kind(
            f"{self.argv[0]} in the machine: {said}",
            hint="set client under [instance.NAME.vm] to a command that logs in, such as with --defaults-file",
        )


class NotUpError(ServerError):
    """The server in the machine does not answer yet."""


def ask(client: InsideClient, patience: float, part: ServerInsidePart | None) -> InsideAnswer:
    """Return what the server says of itself, as soon as it answers. The errors are those of `InsideClient`.

    `part` is what the backup says of it (None: nothing).
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


def check_server(answer: InsideAnswer, part: ServerInsidePart) -> CheckOutcome:
    """Check that the server is the one that was backed up."""
    expected = InsideIdentity(part.flavour, part.server_uuid, part.server_id)
    return _outcome("the server inside", judge_identity(expected, answer))


def judge_bounds(answer: InsideAnswer, part: ServerInsidePart) -> InsideVerdict:
    """Return whether the server recovered to a state between the bounds in the manifest.

    DamagedError if the bounds cannot be read.
    """
    before = bound_position(part.flavour, part.before)
    after = bound_position(part.flavour, part.after) if part.after is not None else None
    return judge_position(before, after, answer)


def bound_position(flavour: Flavour, bound: BoundPart) -> Position:
    """Return a bound of a manifest as a position. DamagedError if its GTIDs cannot be read."""
    at = None
    if bound.binlog_file is not None and bound.binlog_offset is not None:
        at = BinlogCoordinates(bound.binlog_file, bound.binlog_offset)
    try:
        gtids = parse_gtids(flavour, bound.gtids) if bound.gtids is not None else None
    except ValueError as error:
        raise DamagedError(
            f"the manifest says that the server had published {printable(bound.gtids or '')[:200]}, which are no GTIDs",
            hint="the manifest was altered, or a newer zsnapdb wrote it",
        ) from error
    return Position(flavour, at, gtids, "manifest")


def position_of(answer: InsideAnswer) -> str:
    """Return the GTIDs that the server recovered to, for the evidence; "" if it has none."""
    text = str(answer.recovered) if answer.recovered is not None else ""
    return text if len(text) <= _LONGEST_POSITION else f"{text[:_LONGEST_POSITION]}…"


def position_check(what: str, verdict: InsideVerdict) -> CheckOutcome:
    """Return the check that a judgement on the position is. Call it for one that is proved or wrong."""
    return _outcome(what, verdict)


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
    """Let the server check about `budget` bytes of tables (None: all). Sequences are left out: nothing checks them."""
    listed = list(_tables(client))
    known = {table.quoted: table for table in listed if table.row_place in CHECKED and not table.is_sequence}
    chosen = [known[item.name] for item in sample_whole([sized(table) for table in known.values()], budget, seed)]
    for first in range(0, len(chosen), _TABLES_AT_ONCE):
        batch = chosen[first : first + _TABLES_AT_ONCE]
        rows = questions.checked(batch, client.query(questions.check_of(batch)))
        for table in batch:
            wrong = judge_table(rows[table.quoted])
            outcome = Outcome.PASSED if wrong is None else Outcome.DAMAGED
            yield CheckOutcome(table.quoted[:_LONGEST_ANSWER], outcome, (wrong or "")[:_LONGEST_ANSWER])


def check_probes(client: InsideClient, probes: Sequence[ProbeSettings]) -> Iterator[CheckOutcome]:
    """Run the configured probes and judge the answers. A probe that cannot be run has failed."""
    for number, item in enumerate(probes, 1):
        what = item.name or f"probe {number}: {item.sql}"
        try:
            rows = client.query(item.sql)
        except (ServerError, CommandError, CommandTimeout, DamagedError) as error:
            yield CheckOutcome(what, Outcome.FAILED, error.message)
            continue
        wrong = judge_probe(item, rows)
        finding = (f"{rows[0][0]}" if wrong is None else f"it answered {wrong}")[:_LONGEST_ANSWER]
        yield CheckOutcome(what, Outcome.PASSED if wrong is None else Outcome.FAILED, finding)


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
    to = choose_backup(scratch.choosable_ids(instance, repository), seed) if request.to == "random" else request.to
    above = scratch.home(instance, scratch.datasets_of_newest(instance, repository))
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
    end_users = ending(settings, work.connect)
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
        with scratch.naming_removed(work.instance, work.repository, backup_id):
            done = machine_run.execute_without_journal(work)
    except (DamagedError, ConsistencyError, CommandError) as error:
        log.failed("restore", backup_id, error)
        return False
    log.steps += scratch.evidence_of(done)
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
            answer = ask(client, planned.patience, planned.server)
            _note_position(planned, answer, log)
        work.events.tell("checking tables in the machine")
        with log.step(TABLES, "CHECK TABLE"):
            for check in check_tables(client, planned.budget, planned.seed):
                log.add("table", check)
        with log.step(PROBES, f"{len(planned.probes)} probe(s)"):
            for check in check_probes(client, planned.probes):
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
    log.position = position_of(answer)
    if planned.server is None:
        log.add("server", CheckOutcome("the server inside", Outcome.PASSED, f"{log.server_version} answers"))
        log.notes.append("the position was not checked: the server was not locked when it was backed up")
        return
    log.add("server", check_server(answer, planned.server))
    verdict = judge_bounds(answer, planned.server)
    if verdict.result is InsideResult.UNPROVABLE:
        log.notes.append(f"the position cannot be proved: {verdict.reason}")
        return
    log.add("position", position_check(planned.restore.backup_id, verdict))


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
