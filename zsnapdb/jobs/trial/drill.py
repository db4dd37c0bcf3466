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
from zsnapdb.config import Settings
from zsnapdb.errors import (
    CommandError,
    ConsistencyError,
    DamagedBackupError,
    DamagedError,
    PreflightError,
    ServerError,
    ZsnapdbError,
)
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.jobs.trial import scratch, scratch_restore
from zsnapdb.jobs.trial.server_checks import CheckOutcome, Isolated, check_pages, check_probes, check_tables
from zsnapdb.model import Flavour
from zsnapdb.mysql import programs, server_program
from zsnapdb.planning.restore.steps import RestorePlan
from zsnapdb.planning.trial.drill import choose_backup, seed_of
from zsnapdb.repository import drills, verifications
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome, StepPart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import version

PAGES, START, TABLES, PROBES = "pages", "start", "tables", "probes"


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


@dataclass(frozen=True)
class DrillResult:
    """A finished drill: its evidence, and the key of the evidence in the repository."""

    evidence: Evidence
    key: str


def plan(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    requested: str,
    *,
    seed: int | None,
    whole: bool,
    accepts_older: bool = False,
    history: str | None = None,
) -> DrillPlan:
    """Return the plan of a drill; nothing is changed.

    Raises an error for a point that does not exist, a broken chain, or a missing server program, or a missing
    innochecksum that the configuration requires.

    `requested` is a point as for `restore`, or `random`: then the seed chooses a backup. `accepts_older` and `history`
    are as for `restore`.
    """
    drill_id = instance.host.new_backup_id()
    chosen_seed = seed_of(drill_id) if seed is None else seed
    known = repository.backup_ids(instance.name)
    to = choose_backup(known, chosen_seed) if requested == "random" else requested
    place = scratch.place(
        scratch.home(instance, scratch_restore.datasets_of_newest(instance, repository)), drill_id, "drill"
    )
    planned = scratch_restore.plan(
        settings, instance, repository, to, place, accepts_older=accepts_older, history=history
    )
    binary = server_program.fitting(instance.settings.server, planned.flavour, planned.server_version).path
    innochecksum = innochecksum_for(instance, planned.flavour, binary)
    budget = None if whole else instance.settings.drill.sample
    return DrillPlan(
        drill_id, requested, planned, place, chosen_seed, budget, len(instance.settings.drill.probe), innochecksum
    )


def innochecksum_for(instance: Instance, flavour: Flavour, binary: Path) -> Path | None:
    """Return innochecksum of the server's family; None if there is none and `drill.pages` does not require it.

    PreflightError if it is required and missing.
    """
    try:
        return programs.find(programs.INNOCHECKSUM, instance.settings.server, flavour, binary)
    except PreflightError as error:
        if instance.settings.drill.pages == "if-possible":
            return None
        hint = f'{error.hint}; or set pages = "if-possible" in [instance.{instance.name}.drill]'
        raise PreflightError(error.message, hint=hint) from error


@dataclass
class _Log:
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


def drill(
    settings: Settings,
    instance: Instance,
    requested: str,
    *,
    seed: int | None,
    whole: bool,
    accepts_older: bool = False,
    history: str | None = None,
) -> DrillResult:
    """Plan a drill and execute that plan. The errors are those of `plan` and `execute`."""
    repository = instance.open_repository()
    planned = plan(
        settings,
        instance,
        repository,
        requested,
        seed=seed,
        whole=whole,
        accepts_older=accepts_older,
        history=history,
    )
    return execute(settings, instance, repository, planned)


def execute(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan) -> DrillResult:
    """Carry out exactly this plan and store the evidence. Afterwards nothing of the copy is left, however it ended.

    Every result about the restored server goes into the evidence, bad or good. An error is raised only for reasons that
    say nothing about the backup: no repository, no space, no server program.
    """
    log = _Log(instance.host.now())
    with scratch.ephemeral(instance, planned.place, settings.restore.mount_root):
        _try(settings, instance, repository, planned, log)
        evidence = Evidence(
            drill_id=planned.drill_id,
            instance=instance.name,
            repository_id=repository.id,
            requested=planned.requested,
            backup_id=planned.restore.backup_id,
            seed=planned.seed,
            host=socket.gethostname(),
            started=log.started,
            finished=instance.host.now(),
            tool_version=__version__,
            run_id=instance.host.run_id(),
            zfs_version=version.userland(),
            server_version=log.server_version or planned.restore.server_version,
            position=log.position,
            steps=tuple(log.steps),
            checks=tuple(log.checks),
            notes=tuple(log.notes),
            has_read_all_pages=log.has_read_all_pages,
        )
        key = drills.write(repository, evidence)
        _record_damage(repository, evidence, log.damaged)
    return DrillResult(evidence, key)


def _record_damage(repository: Repository, evidence: Evidence, damaged: Mapping[str, str]) -> None:
    """Record the backups whose stored objects the drill found damaged, like a finding of verify."""
    if damaged:
        damage = {backup_id: (finding,) for backup_id, finding in damaged.items()}
        verifications.add(repository, evidence.instance, evidence.finished, damage, f"drill {evidence.drill_id}")


def _try(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: DrillPlan,
    log: _Log,
) -> None:
    """Restore, boot and check; the results go into the log."""
    backup_id = planned.restore.backup_id
    try:
        restored = scratch_restore.execute(settings, instance, repository, planned.restore)
    except (DamagedError, ConsistencyError, ServerError, CommandError) as error:
        log.checks.append(CheckPart(kind="restore", what=backup_id, outcome=outcome_of(error), finding=error.message))
        if isinstance(error, DamagedBackupError):
            log.damaged[error.backup_id] = error.message
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
        log.notes.append("this host has no innochecksum: the checksums of the pages were not checked")
    else:
        instance.events.tell("checking pages")
        _check_pages(copy, planned.innochecksum, planned, timeout, log)
    _boot_and_ask(instance, planned, Isolated(copy, planned.restore.server_id, timeout), log)


def _check_pages(copy: Copy, innochecksum: Path, planned: DrillPlan, timeout: float, log: _Log) -> None:
    began, size = time.monotonic(), 0
    for page_check in check_pages(copy, innochecksum, planned.budget, planned.seed, timeout):
        log.add("pages", page_check.check)
        size += page_check.size
    # Replayed binlogs may have removed files that the backup has.
    log.has_read_all_pages = planned.budget is None and not planned.restore.replays
    log.steps.append(StepPart(kind=PAGES, what="innochecksum", seconds=round(time.monotonic() - began, 3), size=size))


def _boot_and_ask(instance: Instance, planned: DrillPlan, isolated: Isolated, log: _Log) -> None:
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
        log.checks.append(
            CheckPart(kind="server", what="start and checks", outcome=outcome_of(error), finding=error.message)
        )
    finally:
        isolated.end()


def outcome_of(error: ZsnapdbError) -> Outcome:
    """Return the outcome that an error means for the backup."""
    return Outcome.DAMAGED if isinstance(error, DamagedError) else Outcome.FAILED


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
    repository = instance.open_repository()
    known = drills.ids(repository, instance.name)
    return drills.read(repository, instance.name, known[-1] if drill_id == "latest" and known else drill_id)
