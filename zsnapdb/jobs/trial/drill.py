"""A drill: restore from the repository into scratch datasets, boot in isolation, check, write the evidence, throw everything away."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from zsnapdb import __version__
from zsnapdb.config import Settings
from zsnapdb.errors import CommandError, ConsistencyError, DamagedError, ServerError, ZsnapdbError
from zsnapdb.jobs.clock import fresh_backup_id, now
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.trial import scratch, scratch_restore
from zsnapdb.jobs.trial.server_checks import CheckOutcome, Isolated, check_pages, check_probes, check_tables
from zsnapdb.mysql import programs, server
from zsnapdb.planning.restore.steps import RestorePlan
from zsnapdb.planning.trial.drill import choose_backup, seed_of
from zsnapdb.repository import drills
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome, StepPart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import version

PAGES, START, TABLES, PROBES = "pages", "start", "tables", "probes"


@dataclass(frozen=True)
class DrillPlan:
    """What a drill will do: how it restores, and how much of it is looked at (`budget` None: all)."""

    drill_id: str
    wanted: str
    restore: RestorePlan
    place: scratch.Scratch
    seed: int
    budget: int | None
    probes: int
    innochecksum: Path


@dataclass(frozen=True)
class DrillResult:
    """A drill that was made: its evidence, and the key it has in the repository."""

    evidence: Evidence
    key: str


def plan(
    settings: Settings, instance: Instance, repository: Repository, wanted: str, *, seed: int | None, whole: bool
) -> DrillPlan:
    """Return what a drill would do; changes nothing.

    Refuses what would fail: no such point, a broken chain, no server program or innochecksum.

    `wanted` is a point as `restore` takes it, or `random`: a backup that the seed decides.
    """
    drill_id = fresh_backup_id()
    chosen_seed = seed_of(drill_id) if seed is None else seed
    known = repository.backup_ids(instance.name)
    to = choose_backup(known, chosen_seed) if wanted == "random" else wanted
    volumes = repository.manifest(instance.name, known[-1]).volumes if known else ()
    place = scratch.place(scratch.home(instance, tuple(volume.dataset for volume in volumes)), drill_id, "drill")
    planned = scratch_restore.plan(settings, instance, repository, to, place)
    binary = server.find_binary(instance.settings.server.binary, planned.flavour)
    innochecksum = programs.find(programs.INNOCHECKSUM, instance.settings.server, planned.flavour, binary)
    budget = None if whole else instance.settings.drill.sample
    return DrillPlan(
        drill_id, wanted, planned, place, chosen_seed, budget, len(instance.settings.drill.probe), innochecksum
    )


@dataclass
class _Log:
    """What has been done and found so far."""

    started: datetime
    server_version: str = ""
    position: str = ""
    steps: list[StepPart] = field(default_factory=list)
    checks: list[CheckPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self, kind: str, what: str, size: int = 0) -> Iterator[None]:
        """Note how long the block took, if it came to its end."""
        began = time.monotonic()
        yield
        self.steps.append(StepPart(kind=kind, what=what, seconds=round(time.monotonic() - began, 3), size=size))

    def add(self, kind: str, found: CheckOutcome) -> None:
        """Note what a check found."""
        self.checks.append(CheckPart(kind=kind, what=found.what, outcome=found.outcome, finding=found.found))


def drill(settings: Settings, instance: Instance, wanted: str, *, seed: int | None, whole: bool) -> DrillResult:
    """Plan a drill and execute that plan. The errors are those of `plan` and `execute`."""
    repository = instance.open_repository()
    planned = plan(settings, instance, repository, wanted, seed=seed, whole=whole)
    return execute(settings, instance, repository, planned)


def execute(settings: Settings, instance: Instance, repository: Repository, planned: DrillPlan) -> DrillResult:
    """Carry out exactly this plan and store the evidence. Afterwards nothing of the copy is left, however it ended.

    What the restored server is found to be is in the evidence, bad or good; an error is raised only for what says
    nothing of the backup: no repository, no room, no server program.
    """
    log = _Log(now())
    with scratch.thrown_away(instance, planned.place, settings.restore.mount_root):
        _try(settings, instance, repository, planned, log)
        evidence = Evidence(
            drill_id=planned.drill_id,
            instance=instance.name,
            repository_id=repository.id,
            requested=planned.wanted,
            backup_id=planned.restore.backup_id,
            seed=planned.seed,
            host=socket.gethostname(),
            started=log.started,
            finished=now(),
            tool_version=__version__,
            zfs_version=version.userland(),
            server_version=log.server_version or planned.restore.server_version,
            position=log.position,
            steps=tuple(log.steps),
            checks=tuple(log.checks),
            notes=tuple(log.notes),
        )
        key = drills.write(repository, evidence)
    return DrillResult(evidence, key)


def _try(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: DrillPlan,
    log: _Log,
) -> None:
    """Restore, boot and check; what is found goes to the log."""
    backup_id = planned.restore.backup_id
    try:
        restored = scratch_restore.execute(settings, instance, repository, planned.restore)
    except (DamagedError, ConsistencyError, ServerError, CommandError) as error:
        log.checks.append(CheckPart(kind="restore", what=backup_id, outcome=outcome_of(error), finding=error.message))
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
    instance.events.tell("checking pages")
    began, size = time.monotonic(), 0
    for page_check in check_pages(copy, planned.innochecksum, planned.budget, planned.seed, timeout):
        log.add("pages", page_check.check)
        size += page_check.size
    log.steps.append(StepPart(kind=PAGES, what="innochecksum", seconds=round(time.monotonic() - began, 3), size=size))
    _boot_and_ask(instance, planned, Isolated(copy, planned.restore.server_id, timeout), log)


def _boot_and_ask(instance: Instance, planned: DrillPlan, isolated: Isolated, log: _Log) -> None:
    """Start the server, unreachable, and ask it; it is ended afterwards."""
    instance.events.tell("starting the server in isolation")
    try:
        with log.step(START, "the server, without network, replication, events"):
            facts = isolated.start()
        log.server_version = f"{facts.flavour.value} {facts.version}"
        log.add("isolation", isolated.check(facts))
        instance.events.tell("checking tables")
        with log.step(TABLES, "CHECK TABLE"):
            for found in check_tables(isolated, planned.budget, planned.seed):
                log.add("table", found)
        if instance.settings.drill.probe:
            with log.step(PROBES, f"{len(instance.settings.drill.probe)} probe(s)"):
                for found in check_probes(isolated, instance.settings.drill.probe):
                    log.add("probe", found)
        else:
            log.notes.append(
                f"no probes are configured under [[instance.{instance.name}.drill.probe]]: what the data means was not"
                " asked"
            )
    except (ServerError, ConsistencyError) as error:
        log.checks.append(
            CheckPart(kind="server", what="start and checks", outcome=outcome_of(error), finding=error.message)
        )
    finally:
        isolated.end()


def outcome_of(error: ZsnapdbError) -> Outcome:
    """Return what an error on the way says of the backup."""
    return Outcome.DAMAGED if isinstance(error, DamagedError) else Outcome.FAILED


def exit_code(evidence: Evidence) -> int:
    """Return what a drill ends with: 0 passed, or the exit code of a failed check or of damage."""
    return {Outcome.PASSED: 0, Outcome.FAILED: ConsistencyError.exit_code, Outcome.DAMAGED: DamagedError.exit_code}[
        evidence.outcome
    ]


def history(instance: Instance, count: int) -> list[Evidence]:
    """Return the instance's newest drills, oldest first."""
    return drills.newest(instance.open_repository(), instance.name, count)


def find(instance: Instance, wanted: str) -> Evidence:
    """Return one drill's evidence: by its id, or `latest`. NotThere if there is none."""
    repository = instance.open_repository()
    known = drills.ids(repository, instance.name)
    return drills.read(repository, instance.name, known[-1] if wanted == "latest" and known else wanted)
