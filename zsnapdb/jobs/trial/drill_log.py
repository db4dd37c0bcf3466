"""What a drill has done and found so far, and its evidence in the repository."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from zsnapdb import __version__
from zsnapdb.base.errors import DamagedBackupError, DamagedError, NotThere, ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.host_record import next_sequence, note_drilled
from zsnapdb.jobs.trial.server_checks import CheckOutcome
from zsnapdb.planning.server_plugins import plugin_hint
from zsnapdb.repository import drills, verifications
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
