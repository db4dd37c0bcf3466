"""Retrieves the objects that one restore needs from archive classes of the store.

The store keeps the state of each retrieval, so an interrupted command is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zsnapdb.base.errors import ArchivedError
from zsnapdb.base.quantities import format_duration, quantity
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import chain_checks, machine_restore
from zsnapdb.jobs.restore.machine_restore import MachineRestoreRequest
from zsnapdb.jobs.restore.plan import RestoreRequest, decide
from zsnapdb.planning.repository.archive_classes import ArchivedObjects, RetrievalOption
from zsnapdb.planning.restore.point_forms import ago
from zsnapdb.repository.archived_objects import by_class, find_unreadable, start_retrievals, without_retrieved
from zsnapdb.repository.layout import Key
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.objects import ListedObject
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Retrieval, no_retrievals

_POLL_SECONDS = 300.0


@dataclass(frozen=True)
class RetrievalRequest:
    """The requested retrieval: the point of the restore, the name of a retrieval option, and the time to read.

    The retrieved objects can be read for `days` days. `accepts_older` and `history` are as in a restore.
    """

    to: str = "latest"
    tier: str = "Standard"
    days: int = 7
    accepts_older: bool = False
    history: str | None = None


@dataclass(frozen=True)
class RetrievalPlan:
    """The objects of one restore that cannot be read now. The run starts the retrievals of `missing`.

    `binlogs` contains the incarnations and names of binlogs. If `is_exact` is False, a binlog that decides the point
    cannot be read, so the restore may need other objects too, or fewer binlogs.
    """

    instance: str
    request: RetrievalRequest
    backups: tuple[str, ...]
    binlogs: tuple[tuple[str, str], ...]
    is_exact: bool
    archived: tuple[ArchivedObjects, ...]
    missing: tuple[Key, ...]
    running: tuple[Key, ...]
    repository_name: str | None
    """The repository that the command names; None for the instance's own repository."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `zsnapdb retrieve` with which it continues this retrieval."""
        request, words = self.request, ["--to", self.request.to]
        words += ["--accept-older"] if request.accepts_older else []
        words += ["--history", request.history] if request.history is not None else []
        words += ["--repository", self.repository_name] if self.repository_name is not None else []
        return (self.instance, *words, "--tier", request.tier.lower(), "--days", str(request.days))

    @property
    def options(self) -> tuple[tuple[ArchivedObjects, RetrievalOption | None], ...]:
        """The objects by archive class, and the requested option of each class."""
        return tuple((one, one.option(self.request.tier)) for one in self.archived)

    @property
    def cost(self) -> float:
        """The approximate price in USD of the retrievals to start."""
        return sum(one.cost(option) for one, option in self.options if option is not None)

    @property
    def hours(self) -> int:
        """The usual longest duration of the retrievals in hours; 0 if it is unknown or nothing is archived."""
        return max((option.hours for _, option in self.options if option is not None), default=0)


@dataclass(frozen=True)
class RetrievalResult:
    """Started retrievals. `left` is the number of objects that could not be read after the wait, at least."""

    plan: RetrievalPlan
    started: int
    left: int
    wait: float

    def alarm(self) -> ArchivedError | None:
        """Return an error if the command waited and objects still cannot be read."""
        if not (self.wait and self.left):
            return None
        return ArchivedError(
            f"after {format_duration(self.wait)}, {quantity(self.left, 'object')} still cannot be read",
            hint="run the same command again: it waits for the running retrievals, and starts none of them twice",
        )


def plan(instance: Instance, request: RetrievalRequest) -> RetrievalPlan:
    """Return the objects to retrieve for a restore to the requested point; change nothing.

    Raises:
        RepositoryError: the store has no archive classes.
        DamagedError: a chunk of the chain is missing or has a wrong size.
        ZsnapdbError: the point is unreachable.
    """
    if instance.repository.address.scheme != "s3":
        raise no_retrievals(instance.repository.url)
    request = replace(request, to=ago(request.to, instance.host.now()))
    repository = instance.open_repository()
    chain, binlogs, is_exact = _needs(instance, repository, request)
    cold: list[ListedObject[Any]] = []
    for link in chain:
        cold += chain_checks.archived_chunks(instance, repository, link)
    cold += chain_checks.archived_binlogs(instance, repository, binlogs)
    unreadable = find_unreadable(repository, cold)
    return RetrievalPlan(
        instance.name,
        request,
        tuple(link.backup_id for link in chain),
        binlogs,
        is_exact,
        by_class(unreadable),
        tuple(one.key for one, state in unreadable if state is Retrieval.NONE),
        tuple(one.key for one, state in unreadable if state is Retrieval.RUNNING),
        instance.other_repository,
    )


def _needs(
    instance: Instance, repository: Repository, request: RetrievalRequest
) -> tuple[Sequence[Manifest], tuple[tuple[str, str], ...], bool]:
    """Return the chain and the binlogs of the restore, and whether these binlogs are known exactly."""
    to, older = request.to, request.accepts_older
    if instance.settings.vm is not None:
        known, manifest = machine_restore.newest_wanted(
            instance, repository, MachineRestoreRequest(to, None, None, older)
        )
        return known.chain_of(manifest), (), True
    wanted = RestoreRequest(to, accepts_older=older, history=request.history)
    try:
        decided = decide(instance, repository, wanted)
        logs = [log for step in decided.chosen.replays(1) for log in step.logs]
        return decided.chain, tuple((log.incarnation, log.file) for log in logs), True
    except ArchivedError:
        decided = decide(instance, repository, wanted, reads_binlogs=False)
        return decided.chain, tuple((file.incarnation, file.name) for file in decided.chosen.choice.files), False


def retrieve(
    instance: Instance, request: RetrievalRequest, wait: float = 0.0, pause: Callable[[float], None] = time.sleep
) -> RetrievalResult:
    """Start the retrievals of the plan, and wait at most `wait` seconds until every object can be read.

    After the wait, the plan is made again, because the retrieved binlogs may show that other objects are needed.
    """
    deadline = time.monotonic() + wait
    planned = plan(instance, request)
    first, started = planned, 0
    while True:
        repository = instance.open_repository()
        start_retrievals(repository, planned.missing, request.tier, request.days)
        started += len(planned.missing)
        left: Sequence[Key] = (*planned.missing, *planned.running)
        while left and (remaining := deadline - time.monotonic()) > 0:
            instance.events.tell(f"{quantity(len(left), 'object')} cannot be read yet")
            pause(min(_POLL_SECONDS, remaining))
            left = without_retrieved(repository, left)
        if left or not planned.archived:
            return RetrievalResult(first, started, len(left), wait)
        planned = plan(instance, planned.request)
