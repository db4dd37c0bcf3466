"""A drill: restore from the repository into scratch datasets, boot in isolation, check, store evidence, remove all."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from zsnapdb import __version__
from zsnapdb.base.errors import (
    CommandError,
    ConsistencyError,
    DamagedBackupError,
    DamagedError,
    NotThere,
    PreflightError,
    ServerError,
    ZsnapdbError,
)
from zsnapdb.base.model import Flavour
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.host_record import next_sequence, note_drilled
from zsnapdb.jobs.restore import preflight, restore_run
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.jobs.trial import scratch
from zsnapdb.jobs.trial.server_checks import CheckOutcome, Isolated, check_pages, check_probes, check_tables
from zsnapdb.mysql.process import programs, server_program
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.server_plugins import plugin_hint
from zsnapdb.planning.trial.drill import choose_backup, seed_of
from zsnapdb.repository import drills, layout, verifications
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome, StepPart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import version

BOOT = "boot"
"""The kind of the step and of the check that a machine boots. Only drills of machines have them."""


@dataclass(frozen=True)
class DrillResult:
    """A finished drill: its evidence, and the key of the evidence in the repository."""

    evidence: Evidence
    key: str


@dataclass(frozen=True)
class DrillSubject:
    """What is drilled: the id of the drill, the requested point, the backup, and the seed of its choices."""

    drill_id: str
    requested: str
    backup_id: str
    seed: int


@dataclass
class DrillLog:
    """The steps and check results of a drill so far."""

    started: datetime
    server_version: str = ""
    position: str = ""
    steps: list[StepPart] = field(default_factory=list)
    checks: list[CheckPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_read_all_pages: bool = False
    damaged: dict[str, str] = field(default_factory=dict)
    """Backups with damaged stored objects, and what was found."""

    @contextlib.contextmanager
    def step(self, kind: str, what: str, size: int = 0) -> Iterator[None]:
        """Note how long the block took, if it ended without an error."""
        began = time.monotonic()
        yield
        self.steps.append(StepPart(kind=kind, what=what, seconds=round(time.monotonic() - began, 3), size=size))

    def add(self, kind: str, check: CheckOutcome) -> None:
        """Note the result of a check."""
        self.checks.append(CheckPart(kind=kind, what=check.what, outcome=check.outcome, finding=check.finding))

    def failed(self, kind: str, what: str, error: ZsnapdbError) -> None:
        """Note that something could not be restored or checked because of the error, which is about the backup."""
        self.checks.append(CheckPart(kind=kind, what=what, outcome=outcome_of(error), finding=_finding(error)))
        if isinstance(error, DamagedBackupError):
            self.damaged[error.backup_id] = error.message

    def store(self, instance: Instance, repository: Repository, subject: DrillSubject) -> DrillResult:
        """Store the evidence of the drill, and record the backups that it found damaged, like a finding of verify."""
        known = [key.sequence for key in drills.keys(repository, instance.name)]
        evidence = Evidence(
            drill_id=subject.drill_id,
            sequence=next_sequence(instance, repository, known),
            instance=instance.name,
            repository_id=repository.id,
            requested=subject.requested,
            backup_id=subject.backup_id,
            manifest=_digest(instance, repository, subject.backup_id),
            seed=subject.seed,
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
        _record_damage(repository, evidence, self.damaged)
        return DrillResult(evidence, key)


def _digest(instance: Instance, repository: Repository, backup_id: str) -> str | None:
    """Return the digest of the backup's manifest; None if it cannot be read, or the drill was of a local set."""
    try:
        return repository.digested_manifest(instance.name, backup_id)[1]
    except (DamagedError, NotThere):
        return None


def _record_damage(repository: Repository, evidence: Evidence, damaged: Mapping[str, str]) -> None:
    if damaged:
        damage = {backup_id: (finding,) for backup_id, finding in damaged.items()}
        verifications.add(repository, evidence.instance, evidence.finished, damage, f"drill {evidence.drill_id}")


def _finding(error: ZsnapdbError) -> str:
    hint = plugin_hint(error.message)
    return f"{error.message} ({hint})" if hint else error.message


def outcome_of(error: ZsnapdbError) -> Outcome:
    """Return the outcome that an error means for the backup."""
    return Outcome.DAMAGED if isinstance(error, DamagedError) else Outcome.FAILED


PAGES, START, TABLES, PROBES = "pages", "start", "tables", "probes"
_UNCHECKED = "this host has no innochecksum: the checksums of the pages were not checked"


@dataclass(frozen=True)
class DrillRequest:
    """The requested drill: a point as for `restore`, or `random`, which the seed decides (None: a new seed).

    `whole`: every page and every table is checked, and no sample. `accepts_older` and `history` are as for `restore`.
    """

    to: str = "latest"
    seed: int | None = None
    whole: bool = False
    accepts_older: bool = False
    history: str | None = None


@dataclass(frozen=True)
class DrillPlan:
    """What a drill will do: how it restores, and how many bytes of the copy it checks (`budget` None: all).

    `innochecksum` None: this host has none, and the configuration lets the drill go on without it.
    """

    drill_id: str
    requested: str
    restore: RestorePlan
    place: scratch.Scratch
    seed: int
    budget: int | None
    probes: int
    innochecksum: Path | None


def plan(settings: Settings, instance: Instance, repository: Repository, request: DrillRequest) -> DrillPlan:
    """Return the plan of a drill; nothing is changed.

    Raises an error for a point that does not exist, a broken chain, or a missing server program, or a missing
    innochecksum that the configuration requires.
    """
    drill_id = instance.host.new_backup_id()
    seed = seed_of(drill_id) if request.seed is None else request.seed
    to = choose_backup(scratch.choosable_ids(instance, repository), seed) if request.to == "random" else request.to
    place = scratch.place(scratch.home(instance, scratch.datasets_of_newest(instance, repository)), drill_id, "drill")
    planned = scratch.plan(
        settings,
        instance,
        repository,
        to,
        place,
        accepts_older=request.accepts_older,
        history=request.history,
    )
    binary = server_program.fitting(instance.settings.server, planned.flavour, planned.server_version).path
    innochecksum = innochecksum_for(instance, planned.flavour, binary)
    budget = None if request.whole else instance.settings.drill.sample
    return DrillPlan(
        drill_id, request.to, planned, place, seed, budget, len(instance.settings.drill.probe), innochecksum
    )


def refuse_unfit(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan) -> None:
    """Raise the error with which this drill would be refused now; warnings go to the instance's events.

    The preflight of its restore decides. Nothing is changed.
    """
    restore_run.refuse_unfit(preflight.examine(settings, instance, repository, planned.restore), instance.events)


def innochecksum_for(instance: Instance, flavour: Flavour, binary: Path) -> Path | None:
    """Return innochecksum of the server's family; None if there is none and `drill.pages` does not require it.

    PreflightError if it is required and missing.
    """
    try:
        return programs.find(programs.INNOCHECKSUM, instance.settings.server, flavour, binary)
    except PreflightError as error:
        if instance.settings.drill.pages == "if-possible":
            return None
        hint = f'{error.hint}; or remove pages = "required" from [instance.{instance.name}.drill]'
        raise PreflightError(error.message, hint=hint) from error


def drill(settings: Settings, instance: Instance, request: DrillRequest) -> DrillResult:
    """Plan a drill and execute that plan. The errors are those of `plan` and `execute`."""
    repository = instance.open_repository()
    return execute(settings, instance, repository, plan(settings, instance, repository, request))


def execute(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan) -> DrillResult:
    """Carry out exactly this plan and store the evidence. Afterwards nothing of the copy is left, however it ended.

    Every result about the restored server goes into the evidence, bad or good. An error is raised only for reasons that
    say nothing about the backup: no repository, no space, no server program.
    """
    log = DrillLog(instance.host.now(), server_version=planned.restore.server_version)
    subject = DrillSubject(planned.drill_id, planned.requested, planned.restore.backup_id, planned.seed)
    with scratch.ephemeral(instance, planned.place, settings.restore.mount_root):
        _try(settings, instance, repository, planned, log)
        return log.store(instance, repository, subject)


def _try(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: DrillPlan,
    log: DrillLog,
) -> None:
    """Restore, boot and check; the results go into the log."""
    backup_id = planned.restore.backup_id
    try:
        restored = scratch.execute(settings, instance, repository, planned.restore)
    except (DamagedError, ConsistencyError, ServerError, CommandError) as error:
        log.failed("restore", backup_id, error)
        return
    copy = restored.copy
    log.steps += restored.steps
    log.position = restored.position
    log.checks.append(
        CheckPart(
            kind="position", what=backup_id, outcome=Outcome.PASSED, finding=f"recovered to exactly {log.position}"
        )
    )
    timeout = instance.settings.drill.check_timeout
    if planned.innochecksum is None:
        log.notes.append(_UNCHECKED)
        instance.events.warn(f"{_UNCHECKED}; install the program of the server's release")
    else:
        instance.events.tell("checking pages")
        _check_pages(copy, planned.innochecksum, planned, timeout, log)
    _boot_and_ask(instance, planned, Isolated(copy, planned.restore.server_id, timeout), log)


def _check_pages(copy: Copy, innochecksum: Path, planned: DrillPlan, timeout: float, log: DrillLog) -> None:
    began, size = time.monotonic(), 0
    for page_check in check_pages(copy, innochecksum, planned.budget, planned.seed, timeout):
        log.add("pages", page_check.check)
        size += page_check.size
    # Replayed binlogs may have removed files that the backup has.
    log.has_read_all_pages = planned.budget is None and not planned.restore.replays
    log.steps.append(StepPart(kind=PAGES, what="innochecksum", seconds=round(time.monotonic() - began, 3), size=size))


def _boot_and_ask(instance: Instance, planned: DrillPlan, isolated: Isolated, log: DrillLog) -> None:
    """Start the server, unreachable for others, check it, and end it."""
    instance.events.tell("starting the server in isolation")
    try:
        with log.step(START, "the server, without network, replication, events"):
            facts = isolated.start()
        log.server_version = f"{facts.flavour.value} {facts.version}"
        log.add("isolation", isolated.check(facts))
        instance.events.tell("checking tables")
        with log.step(TABLES, "CHECK TABLE"):
            for check in check_tables(isolated, planned.budget, planned.seed):
                log.add("table", check)
        if instance.settings.drill.probe:
            with log.step(PROBES, f"{len(instance.settings.drill.probe)} probe(s)"):
                for check in check_probes(isolated, instance.settings.drill.probe):
                    log.add("probe", check)
        else:
            log.notes.append(
                f"no probes are configured under [[instance.{instance.name}.drill.probe]]: the meaning of the data was"
                " not checked"
            )
    except (ServerError, ConsistencyError) as error:
        log.failed("server", "start and checks", error)
    finally:
        isolated.end()


def exit_code(evidence: Evidence) -> int:
    """Return the exit code of a drill: 0 if it passed, else that of a failed check or of damage."""
    return {Outcome.PASSED: 0, Outcome.FAILED: ConsistencyError.exit_code, Outcome.DAMAGED: DamagedError.exit_code}[
        evidence.outcome
    ]


def history(instance: Instance, count: int) -> list[Evidence]:
    """Return the instance's newest drills, oldest first."""
    return drills.newest(instance.open_repository(), instance.name, count)


def find(instance: Instance, drill_id: str) -> Evidence:
    """Return the evidence of a drill: by its id, or `latest`. NotThere if there is no such drill."""
    return drills.read(instance.open_repository(), instance.name, drill_id)


LOOKED_AT = 100
"""In how many of the newest believed drills the run is looked for: each is an object of its own."""


def made(instance: Instance) -> DrillResult | None:
    """Return the drill of this run. One whose evidence cannot be believed is none."""
    try:
        repository = instance.open_repository()
    except NotThere:
        return None
    for evidence in reversed(drills.newest(repository, instance.name, LOOKED_AT)):
        if evidence.run_id == instance.host.run_id():
            return DrillResult(evidence, layout.drill(instance.name, evidence.drill_id, evidence.sequence))
    return None
