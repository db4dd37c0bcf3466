"""Runs a drill: restores to scratch datasets, checks the isolated server, stores evidence, and removes the copy."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from zsnapdb import __version__
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import (
    CommandError,
    ConsistencyError,
    DamagedBackupError,
    DamagedError,
    NotFound,
    PreflightError,
    ServerError,
    ZsnapdbError,
)
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.server_copy import Copy
from zsnapdb.jobs.record.host_backup_record import next_sequence, note_drilled
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore import preflight, run_lifecycle
from zsnapdb.jobs.restore import server_restore as restoring
from zsnapdb.jobs.restore.machine_restore import MachineRestoreResult
from zsnapdb.jobs.restore.plan import RestoreRequest, copy_of
from zsnapdb.jobs.restore.server_restore import RestoreResult
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.jobs.trial.server_checks import CheckOutcome, IsolatedServer, check_pages, check_probes, check_tables
from zsnapdb.mysql.process import programs
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.server_facts import plugin_hint
from zsnapdb.planning.trial.drill import choose_backup, seed_of
from zsnapdb.repository import drills, layout, verifications
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome, StepPart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import version

DRILL = "drill"
"""The purpose of the scratch datasets."""
BOOT = "boot"
"""The name of the step and check that boot a machine. Only drills of machines use it."""
PAGES, START, TABLES, PROBES = "pages", "start", "tables", "probes"
_UNCHECKED = "this host has no innochecksum: the checksums of the pages were not checked"


@dataclass(frozen=True)
class DrillResult:
    """The evidence of a finished drill, and its key in the repository."""

    evidence: Evidence
    key: str


@dataclass(frozen=True)
class DrillRequest:
    """The requested drill. Its point has the same form as for `restore`, or is `random`.

    `seed` determines the random choices. If it is None, a new seed is chosen. With `whole`, all pages and tables are
    checked instead of a sample. `accepts_older` and `history` have the same meaning as for `restore`.
    """

    to: str = "latest"
    seed: int | None = None
    whole: bool = False
    accepts_older: bool = False
    history: str | None = None


@dataclass(frozen=True)
class DrillDraw:
    """The id, the scratch datasets and the random seed of a drill before its restore is planned.

    The drill checks about `budget` bytes of the copy; all bytes if `budget` is None.
    """

    drill_id: str
    requested: str
    place: scratch_datasets.Scratch
    seed: int
    budget: int | None


def draw(instance: Instance, repository: Repository, request: DrillRequest) -> tuple[DrillDraw, str]:
    """Return a new drill, and the point to which it restores.

    Raises:
        NotFound: there is no backup.
    """
    drill_id = instance.host.new_backup_id()
    seed = seed_of(drill_id) if request.seed is None else request.seed
    to = (
        choose_backup(scratch_datasets.choosable_ids(instance, repository), seed)
        if request.to == "random"
        else request.to
    )
    place = scratch_datasets.place(
        scratch_datasets.home(instance, scratch_datasets.datasets_of_newest(instance, repository)), drill_id, DRILL
    )
    budget = None if request.whole else instance.settings.drill.sample
    return DrillDraw(drill_id, request.to, place, seed, budget), to


Restored = TypeVar("Restored", bound=RestoreResult | MachineRestoreResult)


@dataclass
class DrillLog:
    """The steps and the check results of a drill so far."""

    started: datetime
    server_version: str = ""
    position: str = ""
    steps: list[StepPart] = field(default_factory=list)
    checks: list[CheckPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_read_all_pages: bool = False
    damaged: dict[str, str] = field(default_factory=dict)
    """The ids of backups with damaged objects in the repository, each with the finding about the damage."""

    @contextlib.contextmanager
    def step(self, kind: str, what: str, size: int = 0) -> Iterator[None]:
        """Record the duration of a `with` block, unless the block ends with an error."""
        began = time.monotonic()
        yield
        self.steps.append(StepPart(kind=kind, what=what, seconds=round(time.monotonic() - began, 3), size=size))

    def add(self, kind: str, check: CheckOutcome) -> None:
        """Record the result of a check."""
        self.checks.append(CheckPart(kind=kind, what=check.what, outcome=check.outcome, finding=check.finding))

    def restored(
        self, instance: Instance, repository: Repository, backup_id: str, execute: Callable[[], Restored]
    ) -> Restored | None:
        """Execute the restore, and return its result.

        If the backup cannot be restored, record the reason and return None.

        Raises:
            NotFound: the backup was removed from the repository after the plan was made; this is not damage.
        """
        try:
            with scratch_datasets.naming_removed(instance, repository, backup_id):
                done = execute()
        except (DamagedError, ConsistencyError, ServerError, CommandError) as error:
            self.failed("restore", backup_id, error)
            return None
        self.steps += scratch_datasets.evidence_of(done)
        return done

    def run(self, step: str, what: str, kind: str, checks: Iterable[CheckOutcome]) -> None:
        """Record the results of the checks, and their total duration."""
        with self.step(step, what):
            for check in checks:
                self.add(kind, check)

    def note_no_probes(self, instance: Instance) -> None:
        """Record that no probes are configured, so the content of the data was not checked."""
        self.notes.append(
            f"no probe (your own SQL query with its expected result) is configured in"
            f" [[instance.{instance.name}.drill.probe]]: the meaning of the data was not checked"
        )

    def failed(self, kind: str, what: str, error: ZsnapdbError) -> None:
        """Record that a restore or check failed with an error that the backup caused."""
        hint = plugin_hint(error.message)
        outcome = Outcome.DAMAGED if isinstance(error, DamagedError) else Outcome.FAILED
        self.add(kind, CheckOutcome(what, outcome, f"{error.message} ({hint})" if hint else error.message))
        if isinstance(error, DamagedBackupError):
            self.damaged[error.backup_id] = error.message

    def store(self, instance: Instance, repository: Repository, drill: DrillDraw, backup_id: str) -> DrillResult:
        """Store the drill's evidence. Record damaged backups that it found, as `verify` does."""
        known = [key.sequence for key in drills.keys(repository, instance.name)]
        evidence = Evidence(
            drill_id=drill.drill_id,
            sequence=next_sequence(instance, repository, known),
            instance=instance.name,
            repository_id=repository.id,
            requested=drill.requested,
            backup_id=backup_id,
            manifest=_digest(instance, repository, backup_id),
            seed=drill.seed,
            host=socket.gethostname(),
            started=self.started,
            finished=instance.host.now(),
            tool_version=__version__,
            run_id=instance.host.run_id(),
            zfs_version=version.userland(),
            server_version=self.server_version,
            position=self.position,
            steps=tuple(self.steps),
            checks=tuple(self.checks),
            notes=tuple(self.notes),
            has_read_all_pages=self.has_read_all_pages,
        )
        key = drills.write(repository, evidence)
        note_drilled(instance, repository, evidence.drill_id)
        if self.damaged:
            damage = {name: (finding,) for name, finding in self.damaged.items()}
            verifications.add(repository, instance.name, evidence.finished, damage, f"drill {evidence.drill_id}")
        return DrillResult(evidence, key)


def _digest(instance: Instance, repository: Repository, backup_id: str) -> str | None:
    """Return the digest of the backup's manifest. Return None if it is unreadable, or if the drill used a local set."""
    try:
        return repository.digested_manifest(instance.name, backup_id)[1]
    except (DamagedError, NotFound):
        return None


@dataclass(frozen=True)
class DrillPlan(DrillDraw):
    """The plan of a drill, with the plan of its restore.

    `innochecksum` is None if this host lacks the program and the configuration allows a drill without it.
    """

    restore: RestorePlan
    probes: int
    innochecksum: Path | None


def plan(settings: Settings, instance: Instance, repository: Repository, request: DrillRequest) -> DrillPlan:
    """Return the plan of a drill; change nothing.

    Raises:
        ZsnapdbError: the point does not exist, the chain is broken, or the server program or a required innochecksum is
            missing.
    """
    drawn, to = draw(instance, repository, request)
    accepts, history = request.accepts_older, request.history
    wanted = RestoreRequest(to, drawn.place.top, makes_parent=True, accepts_older=accepts, history=history)
    planned = restore_plan.make(settings, instance, repository, wanted)
    binary = programs.fitting_program(instance.settings.server, planned.flavour, planned.server_version).path
    innochecksum = innochecksum_for(instance, planned.flavour, binary)
    probes = len(instance.settings.drill.probe)
    return DrillPlan(**vars(drawn), restore=planned, probes=probes, innochecksum=innochecksum)


def refuse_unfit(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan) -> None:
    """Raise the error that the first step of the drill's restore would raise now; change nothing.

    Warnings are reported as events of the instance.
    """
    run_lifecycle.refuse_unfit(preflight.examine(settings, instance, repository, planned.restore), instance.events)


def innochecksum_for(instance: Instance, flavour: Flavour, binary: Path) -> Path | None:
    """Return the path of the flavour's innochecksum; None if it is missing and `drill.pages` does not require it.

    Raises:
        PreflightError: innochecksum is required but missing.
    """
    try:
        return programs.find(programs.INNOCHECKSUM, instance.settings.server, flavour, binary)
    except PreflightError as error:
        if instance.settings.drill.pages == "if-possible":
            return None
        hint = f'{error.hint}; or remove pages = "required" from [instance.{instance.name}.drill]'
        raise PreflightError(error.message, hint=hint) from error


def drill(settings: Settings, instance: Instance, request: DrillRequest) -> DrillResult:
    """Plan a drill and execute that plan. Raises the errors of `plan` and `execute`."""
    repository = instance.open_repository()
    return execute(settings, instance, repository, plan(settings, instance, repository, request))


def execute(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan) -> DrillResult:
    """Execute exactly this plan and store the evidence. Afterwards the copy is removed, even if an error occurs.

    The evidence contains every result of the checks, even failures. An error is raised only for a problem that the
    backup did not cause, such as a missing repository or server program, or too little space.
    """
    log = DrillLog(instance.host.now(), server_version=planned.restore.server_version)
    with scratch_datasets.ephemeral(instance, planned.place, settings.restore.mount_root):
        _try(settings, instance, repository, planned, log)
        return log.store(instance, repository, planned, planned.restore.backup_id)


def _try(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan, log: DrillLog) -> None:
    plan, backup_id = planned.restore, planned.restore.backup_id
    restored = log.restored(
        instance, repository, backup_id, lambda: restoring.execute_without_journal(settings, instance, repository, plan)
    )
    if restored is None:
        return
    copy = copy_of(instance, plan)
    log.position = restored.position.describe()
    log.add("position", CheckOutcome(backup_id, Outcome.PASSED, f"recovered to exactly {log.position}"))
    timeout = instance.settings.drill.check_timeout
    if planned.innochecksum is None:
        log.notes.append(_UNCHECKED)
        instance.events.warn(f"{_UNCHECKED}; install the program of the server's release")
    else:
        instance.events.tell("checking pages")
        _check_pages(copy, planned.innochecksum, planned, timeout, log)
    _boot_and_ask(instance, planned, IsolatedServer(copy, planned.restore.server_id, timeout), log)


def _check_pages(copy: Copy, innochecksum: Path, planned: DrillPlan, timeout: float, log: DrillLog) -> None:
    began, size = time.monotonic(), 0
    for check, read in check_pages(copy, innochecksum, planned.budget, planned.seed, timeout):
        log.add("pages", check)
        size += read
    # Replayed binlogs may have removed files that were in the backup, so not all of its pages were read.
    log.has_read_all_pages = planned.budget is None and not planned.restore.replays
    log.steps.append(StepPart(kind=PAGES, what="innochecksum", seconds=round(time.monotonic() - began, 3), size=size))


def _boot_and_ask(instance: Instance, planned: DrillPlan, isolated: IsolatedServer, log: DrillLog) -> None:
    instance.events.tell("starting the server in isolation")
    try:
        with log.step(START, "the server, without network, replication, events"):
            facts = isolated.start()
        log.server_version = f"{facts.flavour.value} {facts.version}"
        log.add("isolation", isolated.check(facts))
        instance.events.tell("checking tables")
        log.run(TABLES, "CHECK TABLE", "table", check_tables(isolated, planned.budget, planned.seed))
        probes = instance.settings.drill.probe
        if probes:
            log.run(PROBES, f"{len(probes)} probe(s)", "probe", check_probes(probes, isolated.query_as_user))
        else:
            log.note_no_probes(instance)
    except (ServerError, ConsistencyError) as error:
        log.failed("server", "start and checks", error)
    finally:
        isolated.end()


def exit_code(evidence: Evidence) -> int:
    """Return 0 if the drill passed, else the exit code for a failed check or for damage."""
    return {Outcome.PASSED: 0, Outcome.FAILED: ConsistencyError.exit_code, Outcome.DAMAGED: DamagedError.exit_code}[
        evidence.outcome
    ]


def history(instance: Instance, count: int) -> list[Evidence]:
    """Return the instance's newest drills, oldest first."""
    return drills.newest(instance.open_repository(), instance.name, count)


def find(instance: Instance, drill_id: str) -> Evidence:
    """Return the evidence of the drill with this id, or of the newest drill for `latest`.

    Raises:
        NotFound: there is no such drill.
    """
    return drills.read(instance.open_repository(), instance.name, drill_id)


LOOKED_AT = 100
"""The number of newest trusted drills among which the drill of a run is searched for.

Each drill is a separate object.
"""


def drill_of_run(instance: Instance) -> DrillResult | None:
    """Return the drill of the run with this id; None if there is no such drill with trusted evidence."""
    try:
        repository = instance.open_repository()
    except NotFound:
        return None
    for evidence in reversed(drills.newest(repository, instance.name, LOOKED_AT)):
        if evidence.run_id == instance.host.run_id():
            return DrillResult(evidence, layout.drill(instance.name, evidence.drill_id, evidence.sequence))
    return None
