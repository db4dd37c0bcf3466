"""`zsnapdb restore --continue-to`: rolls a finished restore forward to a later point, before its server is in use.

Since the restore, nothing may have changed the restored server. It must be stopped, or running with `--handover look`.
Only the transactions between the two points are replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zsnapdb.base.errors import NotFound, PreflightError, UnknownNameError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import affected_replicas
from zsnapdb.jobs.restore.backup_selection import choose, first_manifest, local_binlogs, replay_steps
from zsnapdb.jobs.restore.handover_plan import Handover, handover_step
from zsnapdb.jobs.restore.offline_repository import known_archive_of, open_for_restore
from zsnapdb.jobs.restore.plan import copy_of
from zsnapdb.jobs.restore.run_lifecycle import Confirm
from zsnapdb.jobs.restore.server_restore import RestoreResult, execute_continued
from zsnapdb.jobs.restore.volume_receive import restored_mark
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.point_forms import AtBackup, Latest, Target, ago, parse_target
from zsnapdb.planning.restore.replays import beyond
from zsnapdb.planning.restore.steps import CheckServer, LeaveStopped, ReadOnlyStart, Replay, ResumedRun
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, destruction

_WHOLE = 1 << 62
"""A batch size in bytes that exceeds the total size of all binlogs."""
NEXT, HERE = "next", "here"
"""The names of two points: the end of the next transaction, and the present point of the restore."""


@dataclass(frozen=True)
class ContinueRequest:
    """The next point, the dataset of the finished restore (None if there is only one), and the new handover.

    The point `next` is the end of the next transaction. The point `here` is the current point of the restore.
    """

    to: str
    top: str | None = None
    handover: Handover = field(default_factory=Handover)
    origin: RestoreOrigin = RestoreOrigin.REPOSITORY
    history: str | None = None


def finished(settings: Settings, instance: Instance, top: str | None) -> RestoreJournal:
    """Return the finished restore that can continue.

    Raises:
        UnknownNameError: there is no such restore, or there are several.
    """
    known: dict[str, RestoreJournal] = {}
    for journal in Journals(settings.restore.journal).history(instance.name):
        planned = journal.plan
        is_here = all(
            datasets.exists(name) and destruction.is_ours(name, restored_mark(planned))
            for name in planned.layout.datasets.values()
        )
        if (
            isinstance(planned.steps[-1], LeaveStopped | ReadOnlyStart)
            and is_here
            and top in (None, planned.layout.top)
        ):
            known[planned.layout.top] = journal
    if len(known) != 1:
        raise UnknownNameError(
            f"no single restore of {instance.name}{f' to {top}' if top else ''} was left stopped or open for"
            f" inspection",
            hint=f"restores that can be continued: {', '.join(known) or 'none'}; name the dataset with --target. Repeat"
            " a restore that another handover started, such as `run`",
        )
    return next(iter(known.values()))


def plan_now(settings: Settings, instance: Instance, request: ContinueRequest) -> RestoreJournal:
    """Return the plan that `roll_forward` would execute now; change nothing. Raises the errors of `plan`."""
    instance = _as_before(settings, instance, request)
    return plan(settings, instance, open_for_restore(instance, request.origin), request)


def roll_forward(
    settings: Settings, instance: Instance, request: ContinueRequest, confirm: Confirm, stop_after: str | None = None
) -> RestoreResult:
    """Move the finished restore to the requested point, and hand it over again.

    Raises the errors of `plan` and of a restore. If an error occurs, nothing is removed, and `zsnapdb restore --resume`
    continues.
    """
    instance = _as_before(settings, instance, request)
    repository = open_for_restore(instance, request.origin)
    planned = plan(settings, instance, repository, request)
    affected_replicas.prepare(instance, planned.plan)
    return execute_continued(settings, instance, repository, planned, confirm, stop_after)


def _as_before(settings: Settings, instance: Instance, request: ContinueRequest) -> Instance:
    return instance.with_repository_of(settings, finished(settings, instance, request.top).plan.repository_name)


def plan(settings: Settings, instance: Instance, repository: Repository, request: ContinueRequest) -> RestoreJournal:
    """Return a journal with the plan that continues the finished restore, and with the steps that are already finished.

    Raises:
        NotFound: the point is not after the point of the restore.
        PreflightError: the restored server is running and was not started by `--handover look`, or its position cannot
            be checked because transactions have no GTIDs.
        UsageError: the point is a backup or `latest`.
    """
    journal = finished(settings, instance, request.top)
    before = journal.plan
    target, requested = None, before.requested
    if request.to != HERE:
        requested = next_transaction(before) if request.to == NEXT else ago(request.to, instance.host.now())
        target = parse_target(requested)
    if isinstance(target, AtBackup | Latest):
        raise UsageError(
            f"a restore can be moved forward only to a time or a GTID, not to {request.to}",
            hint="`zsnapdb binlog status` shows where the archive ends",
        )
    if before.point.gtids is None:
        raise PreflightError(
            "the transactions of the restored server have no GTIDs, so its position cannot be proved",
            hint="restore to the point again, into another dataset",
        )
    after_look = isinstance(before.steps[-1], ReadOnlyStart)
    pid = None if after_look else copy_of(instance, before).process().pid()
    if pid is not None:
        raise PreflightError(
            f"the server of the restore to {before.layout.top} runs (process {pid})",
            hint="shut it down, then continue; transactions that were written to it prevent that",
        )
    kept = tuple(step for step in before.steps[:-1] if not isinstance(step, CheckServer))
    number = 1 + max((step.number for step in kept if isinstance(step, Replay | ResumedRun)), default=0)
    steps = (*kept, ResumedRun(number, before.point.gtids, after_look))
    planned = replace(before, created=instance.host.now(), requested=requested, steps=steps)
    if target is not None:
        planned = _with_replay(settings, instance, repository, request, planned, target, number)
    last = handover_step(settings, instance, repository, planned, request.handover)
    is_checked = target is not None and last.kind in ("stopped", "promote")
    checks = (CheckServer(planned.point.gtids),) if is_checked else ()
    done = {step.name for step in kept}
    return RestoreJournal(
        replace(planned, steps=(*planned.steps, *checks, last)),
        tuple(part for part in journal.done if part.step in done),
    )


def _with_replay(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    request: ContinueRequest,
    planned: RestorePlan,
    target: Target,
    number: int,
) -> RestorePlan:
    """Extend the plan by a replay to a later point. The later point becomes the point of the plan."""
    manifest = first_manifest(instance, repository, planned)
    archive = known_archive_of(instance, repository)
    local = local_binlogs([manifest], request.origin)
    chosen = choose(instance, repository, [manifest], target, archive, request.history, local)
    wanted = [log for step in chosen.replays(_WHOLE) for log in step.logs]
    rest = beyond([log for step in planned.replays for log in step.logs], wanted)
    if not rest:
        raise NotFound("the restore is at that point already", hint=f"name a later one, or `{HERE}` to hand it over")
    steps = (Replay(number, rest, chosen.point.gtids),)
    replays = replay_steps(settings, instance, repository, planned, steps, archive, local)
    return replace(planned, point=chosen.point, steps=(*planned.steps, *replays))


def next_transaction(planned: RestorePlan) -> str:
    """Return the GTID of the first transaction after the restored point.

    Raises:
        NotFound: no transaction after the restored point is known.
    """
    following = planned.point.following
    if following is None or following.gtid is None:
        raise NotFound(
            f"no transaction is known after {planned.requested}, the point of the restore",
            hint="name a later time or GTID; `zsnapdb binlog find` lists transactions",
        )
    return str(following.gtid)
