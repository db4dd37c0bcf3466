"""The evidence of drills in the repository: written once, never over another."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.errors import ConsistencyError, DamagedError, ExistsError, NotThere
from zsnapdb.model import is_backup_id
from zsnapdb.planning.trial.drill import Timing
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Outcome(StrEnum):
    """What came of a drill or of one of its checks.

    DAMAGED: what is stored is not what was written, in the repository or in a page.
    """

    PASSED = "passed"
    FAILED = "failed"
    DAMAGED = "damaged"


class StepPart(_Part):
    """A step that was done: its kind, what it was about, how long it took in seconds, the bytes it moved."""

    kind: str
    what: str
    seconds: float
    size: int = 0


class CheckPart(_Part):
    """A check: its kind (position, pages, table, probe …), what was looked at, what came of it, and what was found."""

    kind: str
    what: str
    outcome: Outcome
    found: str = ""


class Evidence(_Part):
    """A drill: which backup was tried where and by what, what each step took, what each check found."""

    format: Literal[1] = 1
    drill_id: str
    instance: str
    repository_id: str
    wanted: str
    backup_id: str
    seed: int
    host: str
    started: datetime
    finished: datetime
    tool_version: str
    zfs_version: str
    server_version: str
    position: str
    steps: tuple[StepPart, ...]
    checks: tuple[CheckPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of its checks. A drill without a check has proved nothing: it failed."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.DAMAGED in outcomes:
            return Outcome.DAMAGED
        return Outcome.FAILED if Outcome.FAILED in outcomes or not outcomes else Outcome.PASSED

    @property
    def seconds(self) -> float:
        """How long it took from the first step to the last check."""
        return (self.finished - self.started).total_seconds()

    def encode(self) -> bytes:
        """Return the stored form: JSON, UTF-8."""
        return self.model_dump_json(indent=1).encode()


def write(repository: Repository, evidence: Evidence) -> str:
    """Store the evidence and return its key. ConsistencyError if another drill has its id."""
    key = layout.drill(evidence.instance, evidence.drill_id)
    # A request that is repeated after its answer was lost finds its own object; the comparison tells.
    with contextlib.suppress(ExistsError):
        repository.put(key, evidence.encode())
    if read(repository, evidence.instance, evidence.drill_id) != evidence:
        raise ConsistencyError(
            f"{key} was read back different from what was written",
            hint="another drill has the same id, or the store cannot be trusted",
        )
    return key


def ids(repository: Repository, instance: str) -> list[str]:
    """Return the ids of the instance's drills, oldest first."""
    return sorted(listed.key.drill_id for listed in repository.list(layout.drills(instance)))


def read(repository: Repository, instance: str, drill_id: str) -> Evidence:
    """Return a drill's evidence.

    NotThere if there is none of that id, DamagedError if it cannot be read or is of another place.
    """
    absent = NotThere(f"instance {instance} has no drill {drill_id}", hint="see `zsnapdb drills`")
    if not is_backup_id(drill_id):
        raise absent
    key = layout.drill(instance, drill_id)
    try:
        body = repository.get(key)
    except NotThere as error:
        raise absent from error
    try:
        evidence = Evidence.model_validate_json(body)
    except ValidationError as error:
        raise DamagedError(
            f"{key} cannot be read: {error.errors()[0]['msg']}", hint="it was altered, or a newer zsnapdb wrote it"
        ) from error
    if (evidence.instance, evidence.drill_id) != (instance, drill_id):
        raise DamagedError(
            f"{key} is that of {evidence.instance} {evidence.drill_id}",
            hint="objects were renamed or copied by hand in the repository",
        )
    return evidence


def newest(repository: Repository, instance: str, count: int) -> list[Evidence]:
    """Return the newest drills, oldest first; those that cannot be read are left out."""
    readable = []
    for drill_id in ids(repository, instance)[-count:]:
        with contextlib.suppress(DamagedError):
            readable.append(read(repository, instance, drill_id))
    return readable


def timings(past: Sequence[Evidence]) -> list[Timing]:
    """Return what the steps of past drills took. A step counts though a later check failed: it was done."""
    return [Timing(step.kind, step.seconds, step.size) for evidence in past for step in evidence.steps]
