"""The evidence of drills in the repository. Each object is written once and never overwritten.

If a host has a signing key, it trusts evidence and manifests only if a known key signed them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from zsnapdb.base.errors import ConsistencyError, DamagedError, ExistsError, NotFound
from zsnapdb.base.patterns import (
    BackupId,
    Count,
    InstanceName,
    Moment,
    RepositoryId,
    RunId,
    Seconds,
    SequenceNumber,
    Sha256,
    ShortLine,
    Text,
    Words,
)
from zsnapdb.planning import creation_order
from zsnapdb.planning.repository.document_digests import DRILLS
from zsnapdb.planning.trial.drill import Timing
from zsnapdb.repository import layout
from zsnapdb.repository.layout import DrillKey
from zsnapdb.repository.objects import Part
from zsnapdb.repository.repository import Repository

ALL_PAGES = "all pages"
"""The finding of a check that has read every page of a file and found no damage."""


class Outcome(StrEnum):
    """The result of a drill or one of its checks.

    DAMAGED: bytes in the repository, or in a page of a restored file, differ from the bytes that were written.
    """

    PASSED = "passed"
    FAILED = "failed"
    DAMAGED = "damaged"


class StepPart(Part):
    """A completed step: its kind, its object, its duration in seconds, and the number of transferred bytes."""

    kind: Words
    what: Words
    seconds: Seconds
    size: Count = 0


class CheckPart(Part):
    """A check: its kind (position, pages, table, probe …), the checked object, the outcome and the finding."""

    kind: Words
    what: Words
    outcome: Outcome
    finding: Text = ""


class Evidence(Part):
    """A drill: the backup, the host and the versions, the duration of each step, and the finding of each check.

    `requested` is the requested target, such as `latest`. If `has_read_all_pages` is true, the drill has read every
    page of every file, so a file without a check is not in the backup. `sequence` is the drill's sequence number within
    the instance; drills that earlier versions stored have no number.
    """

    format: Literal[1] = 1
    drill_id: BackupId
    instance: InstanceName
    repository_id: RepositoryId
    requested: Words
    backup_id: BackupId
    seed: int
    host: Words
    started: Moment
    finished: Moment
    tool_version: ShortLine
    run_id: RunId | None = None
    zfs_version: ShortLine
    server_version: ShortLine
    position: Text
    steps: tuple[StepPart, ...]
    checks: tuple[CheckPart, ...]
    notes: tuple[Text, ...] = ()
    has_read_all_pages: bool = False
    sequence: SequenceNumber | None = None
    manifest: Sha256 | None = None
    """The digest of the manifest of the backup; None in drills of earlier versions."""

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all checks. A drill without checks proves nothing, so its outcome is a failure."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.DAMAGED in outcomes:
            return Outcome.DAMAGED
        return Outcome.FAILED if Outcome.FAILED in outcomes or not outcomes else Outcome.PASSED

    @property
    def seconds(self) -> float:
        """The duration from the first step to the last check, in seconds."""
        return (self.finished - self.started).total_seconds()


def write(repository: Repository, evidence: Evidence) -> str:
    """Store the evidence and return its key. Evidence without a sequence number gets the next number.

    Raises ConsistencyError if another drill has the same id.
    """
    if evidence.sequence is None:
        known = keys(repository, evidence.instance)
        same = next((key for key in known if key.drill_id == evidence.drill_id), None)
        number = creation_order.next_number(0, [key.sequence for key in known]) if same is None else same.sequence
        evidence = evidence.model_copy(update={"sequence": number})
    key = layout.drill(evidence.instance, evidence.drill_id, evidence.sequence)
    # If the answer to a request was lost, the repeated request finds the object of the first request. The comparison
    # below detects this.
    with contextlib.suppress(ExistsError):
        repository.put(key, repository.keyring.signed_if_able(evidence.encode(), DRILLS))
    if repository.get(key).partition(b"\n")[0] != evidence.encode():
        raise ConsistencyError(
            f"{key} was read back different from what was written",
            hint="another drill has the same id, or the store cannot be trusted",
        )
    return key


def copy_missing(here: Repository, there: Repository, instance: str) -> None:
    """Copy the trusted evidence that repository `there` lacks from repository `here`, byte for byte."""
    known = set(keys(there, instance))
    for key in keys(here, instance):
        if key not in known:
            # This host does not believe the evidence of an unknown writer, so it stays behind.
            with contextlib.suppress(DamagedError, NotFound):
                read_at(here, instance, key)
                there.put_same(key, here.get(key))


def keys(repository: Repository, instance: str) -> list[DrillKey]:
    """Return the keys of the instance's drills, oldest first."""
    listed = (listed.key for listed in repository.list(layout.drills(instance)))
    return creation_order.by_number(listed, lambda key: key.sequence, lambda key: key.drill_id)


def ids(repository: Repository, instance: str) -> list[str]:
    """Return the ids of the instance's drills, oldest first."""
    return [key.drill_id for key in keys(repository, instance)]


def read(repository: Repository, instance: str, drill_id: str) -> Evidence:
    """Return a drill's evidence. The id `latest` means the newest trusted drill.

    Raises: NotFound if the drill does not exist. DamagedError as in `read_at`.
    """
    if drill_id == "latest" and (believed := newest(repository, instance, 1)):
        return believed[0]
    known = [key for key in keys(repository, instance) if drill_id in ("latest", key.drill_id)]
    if not known:
        raise NotFound(f"instance {instance} has no drill {drill_id}", hint="see `zsnapdb drills`")
    return read_at(repository, instance, known[-1])


def read_at(repository: Repository, instance: str, key: DrillKey) -> Evidence:
    """Return a drill's evidence.

    Raises:
        NotFound: the drill no longer exists.
    """
    evidence = Evidence.decode(repository.believed(key), key)
    named = (evidence.repository_id, evidence.instance, evidence.drill_id, evidence.sequence)
    if named != (repository.id, instance, key.drill_id, key.sequence):
        raise DamagedError(
            f"{key} belongs to drill {evidence.drill_id} of instance {evidence.instance}, repository"
            f" {evidence.repository_id}",
            hint="objects were renamed or copied by hand in the repository",
        )
    return evidence


def newest(repository: Repository, instance: str, count: int) -> list[Evidence]:
    """Return the newest drills that are readable and trusted, oldest first."""
    return list(past(repository, instance, count).read)


@dataclass(frozen=True)
class PastDrills:
    """The newest readable drills, oldest first.

    `unreadable` contains the ids of the unreadable drills between and after the readable drills.

    `missing` contains the drills that this host stored but the repository no longer contains.
    """

    read: tuple[Evidence, ...] = ()
    unreadable: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def past(repository: Repository, instance: str, count: int, own: Sequence[str] = ()) -> PastDrills:
    """Return the newest drills, as `newest` does, and the unreadable or untrusted drills between and after them.

    `own` contains the drills whose evidence this host stored. Other writers can add any number of untrusted drills.
    Reading ends after `count` trusted drills or at the oldest drill, so untrusted drills never displace trusted ones.
    """
    readable: list[Evidence] = []
    unreadable: list[str] = []
    listed = keys(repository, instance)
    for key in reversed(listed):
        if len(readable) >= count and (key.sequence is None or key.sequence != readable[-1].sequence):
            break
        try:
            readable.append(read_at(repository, instance, key))
        except DamagedError:
            unreadable.append(key.drill_id)
        except NotFound:
            continue
    there = {key.drill_id for key in listed}
    missing = tuple(drill_id for drill_id in own if drill_id not in there)
    ordered = creation_order.failed_last(
        readable[::-1], lambda one: one.sequence, lambda one: one.outcome is not Outcome.PASSED
    )
    return PastDrills(tuple(ordered[-count:]), tuple(unreadable[::-1]), missing)


def timings(evidence: Sequence[Evidence]) -> list[Timing]:
    """Return the durations of the steps of past drills.

    A step is included even if a later check failed, because the step itself was completed.
    """
    return [Timing(step.kind, step.seconds, step.size) for drill in evidence for step in drill.steps]
