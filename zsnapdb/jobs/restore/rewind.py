"""`zsnapdb rewind`: returns an instance's server to a point, in place, from data on this host.

The restore is prepared and checked while the server is still running. Then the server is stopped, the restored datasets
replace its datasets, and the server is started again. The replaced datasets are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from zsnapdb.base.errors import (
    ConsistencyError,
    ForeignInsideError,
    PreflightError,
    UnknownNameError,
    UsageError,
    ZsnapdbError,
)
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.run import BackupResult, backup
from zsnapdb.jobs.base.events import uninterrupted
from zsnapdb.jobs.base.host import fresh_server_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.host import affected_replicas
from zsnapdb.jobs.record.server_unit_record import service_now_or_before
from zsnapdb.jobs.restore import dataset_exchange, preflight, server_restore
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.dataset_exchange import is_in_place
from zsnapdb.jobs.restore.handover_plan import Handover
from zsnapdb.jobs.restore.left_out import ArchivedRest, archive_rest, count
from zsnapdb.jobs.restore.offline_repository import offline_repository, open_for_restore, reopen
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.replaced_server import OldServerControl, judge_start, serving_process, wait_for_session
from zsnapdb.jobs.steps.exchange_state import look
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal, ways_out_hint
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.process.service import ServerService, configured_server_id
from zsnapdb.mysql.replication import replay
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.dataset_exchange import ExchangeState, differences
from zsnapdb.planning.restore.left_out import LeftOut
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.point_forms import ago
from zsnapdb.planning.restore.replica_checks import ObservedReaders
from zsnapdb.planning.restore.steps import CheckServer, Promote, Recover
from zsnapdb.planning.server_family import family


@dataclass(frozen=True)
class RewindRequest:
    """The point, the origin of the volumes, and the new server_id for MariaDB (None for a random number)."""

    to: str
    origin: RestoreOrigin = RestoreOrigin.AUTO
    server_id: int | None = None
    history: str | None = None


@dataclass(frozen=True)
class RewindPlan:
    """The plan of a rewind, with the plan of its restore and the commands to stop and start the server."""

    restore: RestorePlan
    service: ServerService
    server_id_file: Path | None

    @property
    def handover(self) -> Promote:
        """The last step, in which the restored datasets replace the server's own datasets."""
        return handover_in(self.restore)


def handover_in(plan: RestorePlan) -> Promote:
    """Return the last step of the plan, in which the restored datasets replace the server's own datasets."""
    last = plan.steps[-1]
    assert isinstance(last, Promote), "a rewind hands over in place"
    return last


def plan(settings: Settings, instance: Instance, request: RewindRequest) -> RewindPlan:
    """Return the plan of a rewind; change nothing.

    Also raises the errors of a restore's plan.

    Raises:
        PreflightError: zsnapdb does not know how to stop and start the server, or MariaDB cannot get a new server_id.
    """
    planned = _restore_plan(settings, instance, replace(request, to=ago(request.to, instance.host.now())))
    process = serving_process(planned)
    service = service_now_or_before(instance, process)
    handover = handover_in(planned)
    file = instance.settings.control.server_id_file if handover.server_id is not None else None
    if handover.server_id is not None and file is None:
        raise PreflightError(
            f"{family(planned.flavour).title} must get a new server_id, or it would reuse GTIDs of transactions that"
            f" are left out; no option file for it is configured",
            hint="set control.server_id_file of the instance to a new file in a folder that the server's option files"
            f" include, such as {family(planned.flavour).option_folder}/zz-zsnapdb.cnf",
        )
    # Record the unit now, because a later --resume cannot find the unit of a server that is stopped.
    last = replace(handover, unit=service.unit)
    return RewindPlan(replace(planned, steps=(*planned.steps[:-1], last)), service, file)


def left_out(instance: Instance, planned: RewindPlan) -> LeftOut:
    """Return the transactions that the rewind would leave out now; change nothing."""
    return count(instance, planned.restore)


def examine(settings: Settings, instance: Instance, planned: RewindPlan) -> list[FitnessFinding]:
    """Return the findings of the restore's preflight; change nothing."""
    return preflight.examine(settings, instance, reopen(instance, planned.restore), planned.restore)


def _restore_plan(settings: Settings, instance: Instance, request: RewindRequest) -> RestorePlan:
    on_host: ZsnapdbError | None = None
    here = offline_repository(instance) if request.origin is not RestoreOrigin.REPOSITORY else None
    if here is not None and request.history is None:
        try:
            return restore_plan.make(settings, instance, here, _restore_request(instance, request, RestoreOrigin.LOCAL))
        except (UsageError, ForeignInsideError):
            # This error would also occur with another origin of the volumes.
            raise
        except ZsnapdbError as error:
            # The point may be older than the sets on this host, or it may need a binlog that no longer exists.
            on_host = error
    if request.origin is RestoreOrigin.LOCAL and on_host is not None:
        raise on_host
    try:
        repository = open_for_restore(instance, request.origin)
        return restore_plan.make(settings, instance, repository, _restore_request(instance, request, request.origin))
    except ZsnapdbError as error:
        if on_host is not None:
            error.add_note(f"with the data on this host alone: {on_host.message}")
        raise


def _restore_request(instance: Instance, request: RewindRequest, origin: RestoreOrigin) -> RestoreRequest:
    server_id = request.server_id or fresh_server_id()
    return RestoreRequest(
        to=request.to,
        name=f"{instance.name}-rewind",
        handover=Handover("promote", server_id=server_id),
        history=request.history,
        origin=origin,
    )


_BACKUP_PATIENCE = 30.0
"""The time in seconds for which the final backup waits for an unreachable store."""
_QUICK_ANSWER = 2.0
"""The time in seconds of an answer after which the last binlogs are archived again."""


@dataclass(frozen=True)
class Outage:
    """The effects that users of the server must expect.

    One start and stop of the prepared server took `start_seconds`. The clients in `readers` read the server's binlogs;
    None if the server does not answer. `left_out` and `archived` say which transactions the server loses, and up to
    where the archive has them.
    """

    plan: RestorePlan
    service: ServerService
    start_seconds: float
    readers: ObservedReaders | None
    left_out: LeftOut
    archived: ArchivedRest


@dataclass(frozen=True)
class RewindResult:
    """A running rewound server. If `outage` is None, the rewind is only prepared and waits for --resume.

    This run took `prepared` seconds for the preparation. No server was running for `outage` seconds, over all runs. If
    an earlier run finished the rewind at the time `finished_before` (UTC), this run did nothing. `backup_error` says
    why a requested backup of the new history is missing. If an earlier run stopped the server, `left_out` and
    `archived` are None.
    """

    plan: RestorePlan
    prepared: float
    outage: float | None = None
    finished_before: datetime | None = None
    backup: BackupResult | None = None
    backup_error: ZsnapdbError | None = None
    left_out: LeftOut | None = None
    archived: ArchivedRest | None = None

    @property
    def is_finished(self) -> bool:
        return self.outage is not None

    @property
    def handover(self) -> Promote:
        """The completed last step, in which the restored datasets replaced the server's own datasets."""
        return handover_in(self.plan)


Ask = Callable[[Outage], bool]
"""Function that is called when everything is prepared, before the server is stopped.

If it returns False, the rewind waits for --resume.
"""


def rewind(
    settings: Settings, instance: Instance, planned: RewindPlan, ask: Ask, *, backs_up: bool = True
) -> RewindResult:
    """Execute the plan. Afterwards the server runs in its old place, with the state at the point, and answers.

    If an error occurs before the server is stopped, the server is unchanged, and the restore waits for --resume or
    `zsnapdb restore --abandon`. If an error occurs later, but before the exchange is complete, the old server is
    started again in its former state. If it cannot be started, a note on the error says so. While no server is running,
    signals are delayed.
    """
    with lock_instance(instance, "rewind", "rewinding"):
        began = time.monotonic()
        before = planned.restore.steps[-2].name
        repository = reopen(instance, planned.restore)
        server_restore.execute(settings, instance, repository, planned.restore, stop_after=before)
        return _Rewinding(settings, instance, planned, time.monotonic() - began).finish(ask, backs_up=backs_up)


def resume(settings: Settings, instance: Instance, ask: Ask, *, backs_up: bool = True) -> RewindResult:
    """Continue an interrupted rewind. If the rewind is finished, change nothing.

    Raises:
        UnknownNameError: there is no interrupted rewind and no finished rewind.
    """
    with lock_instance(instance, "rewind", "rewinding"):
        journals, began = Journals(settings.restore.journal), time.monotonic()
        journal = _under_way(journals, instance)
        if journal is None:
            return _finished(journals, instance)
        before = journal.plan.steps[-2].name
        if not journal.is_done(before):
            server_restore.resume(settings, instance, journal.plan.layout.top, stop_after=before)
        service = service_now_or_before(instance, serving_process(journal.plan), handover_in(journal.plan).unit)
        planned = RewindPlan(journal.plan, service, instance.settings.control.server_id_file)
        rewinding = _Rewinding(settings, instance, planned, time.monotonic() - began)
        return rewinding.finish(ask, backs_up=backs_up)


def _under_way(journals: Journals, instance: Instance) -> RestoreJournal | None:
    started = [journal for journal in journals.under_way(instance.name) if isinstance(journal.plan.steps[-1], Promote)]
    if len(started) > 1:
        tops = ", ".join(journal.plan.layout.top for journal in started)
        raise PreflightError(
            f"several restores of {instance.name} that replace its server are unfinished: {tops}",
            hint="; ".join(f"{journal.top}: {ways_out_hint(journal)}" for journal in started),
        )
    return started[0] if started else None


def _finished(journals: Journals, instance: Instance) -> RewindResult:
    """Return the newest finished restore whose datasets are in place now; change nothing.

    Raises:
        UnknownNameError: there is no such restore.
    """
    for journal in reversed(journals.history(instance.name)):
        if is_in_place(journal.plan):
            outage = journal.old_server.down if journal.old_server is not None else 0.0
            return RewindResult(journal.plan, 0.0, outage, journal.done[-1].finished)
    raise UnknownNameError(f"{instance.name} has no unfinished rewind", hint="start one with --to POINT")


class _Rewinding:
    """A rewind whose restore is already prepared. Its methods are the steps that run while the server is down."""

    def __init__(self, settings: Settings, instance: Instance, planned: RewindPlan, prepared: float) -> None:
        self.settings = settings
        self.instance = instance
        self.planned = planned
        self.prepared = prepared
        self.journals = Journals(settings.restore.journal)
        self.old = OldServerControl(instance, self.journals, planned.restore, planned.handover)
        self.outage: Outage | None = None

    @property
    def plan(self) -> RestorePlan:
        return self.planned.restore

    def finish(self, ask: Ask, *, backs_up: bool) -> RewindResult:
        """Ask the user for confirmation, and replace the server.

        If an earlier run has already stopped the server, do not ask.
        """
        state = look(self.plan, self.planned.handover)
        dataset_exchange.refuse_unclear(self.plan, state)
        is_before = state.state is ExchangeState.BEFORE
        self.old.refuse_another()
        if is_before:
            self.old.was_started()
            dataset_exchange.refuse_what_would_be_lost(self.planned.handover)
            self.old.refuse_busy()
            if self.old.record.stopped is None and not self._is_confirmed(ask):
                return RewindResult(self.plan, self.prepared)
            # The user's answer may have taken hours, so read the clients again.
            self._readers()
        try:
            with uninterrupted(self.instance.events.warn):
                self._exchange(stops=is_before)
        except KeyboardInterrupt as error:
            error.add_note(f"the server of {self.instance.name} runs again, at {self.plan.requested}")
            error.add_note(f"no backup of its new history was made: run `zsnapdb backup {self.instance.name}`")
            raise
        return self._result(backs_up=backs_up)

    def _is_confirmed(self, ask: Ask) -> bool:
        """Archive the last binlogs, and ask the user. While the user answers, the server commits more transactions."""
        self.outage, asked = self._expected_outage(), time.monotonic()
        if not ask(self.outage):
            return False
        if time.monotonic() - asked > _QUICK_ANSWER and not self.outage.archived.missing:
            self.outage = replace(self.outage, archived=archive_rest(self.instance))
        return True

    def _expected_outage(self) -> Outage:
        journal = self.journals.find(self.instance.name, self.plan.layout.top)
        starts = [step.name for step in self.plan.steps if isinstance(step, Recover | CheckServer)]
        seconds = [done.seconds for done in journal.done if done.step in starts]
        start, readers, lost = min(seconds, default=0.0), self._readers(), count(self.instance, self.plan)
        return Outage(self.plan, self.planned.service, start, readers, lost, archive_rest(self.instance))

    def _exchange(self, *, stops: bool) -> None:
        try:
            self._give_server_id()
            self._check_start()
            if stops:
                self.old.stop()
            server_restore.resume(self.settings, self.instance, self.plan.layout.top, in_place=self._start)
        except BaseException as error:
            error.add_note(self.old.left_as())
            raise

    def _readers(self) -> ObservedReaders | None:
        """Record the clients that read the server's binlogs, and return them.

        Raises:
            PreflightError: these clients prevent the rewind.
        """
        try:
            return affected_replicas.prepare(self.instance, self.plan)
        except PreflightError as error:
            error.add_note(self.old.left_as())
            raise

    def _give_server_id(self) -> None:
        """Write the option file with the new server_id, and check that the next start will use this server_id."""
        wanted, file = self.planned.handover.server_id, self.planned.server_id_file
        if wanted is None or file is None:
            return
        text = "# Written by zsnapdb rewind. The server was put back: under its old server_id it would reuse GTIDs.\n"
        text += f"[{family(self.plan.flavour).option_section}]\nserver_id = {wanted}\n"
        self.old.write_option_file(file, text)
        process = serving_process(self.plan)
        if process is None:
            # If the server is stopped, an earlier run has already checked this. While the server is stopped, the
            # options of the next start are unknown.
            return
        program = programs.choose_program(self.instance.settings.server, self.plan.flavour, self.plan.server_version)
        seen = configured_server_id(program, process)
        if seen != wanted:
            raise PreflightError(
                f"the next start of the server would not use server_id = {wanted}, which is in {file}, but {seen}",
                hint="name a file that the server reads last, or remove server_id from its other option files and its"
                " command line",
            )

    def _check_start(self) -> None:
        """Raise PreflightError if the server program refuses the options of the next start.

        A rewind replaces the data of the server, so it cannot repair its options.
        """
        for finding in judge_start(self.instance, self.plan):
            raise PreflightError(finding.detail, hint=finding.hint)

    def _start(self) -> None:
        """Start the server in its place, unless it is running, and check it."""
        if serving_process(self.plan) is not None and not self._has_its_server_id():
            # After a power failure, the host may have started the server without the option file.
            self.old.stop()
        if serving_process(self.plan) is None:
            self.instance.events.tell(f"starting the server: {' '.join(self.planned.service.start_words)}")
            self.planned.service.start()
        with wait_for_session(self.instance, self.planned.service.timeout) as session:
            self._check(session)
        self.old.is_up()

    def _has_its_server_id(self) -> bool:
        wanted = self.planned.handover.server_id
        if wanted is None:
            return True
        with wait_for_session(self.instance, self.planned.service.timeout) as session:
            return _server_id(session) == wanted

    def _result(self, *, backs_up: bool) -> RewindResult:
        """Return the result. With `backs_up`, back up the new history. If the backup fails, the server stays in use."""
        own, finished = self.plan.restore_id, self.journals.history(self.instance.name)
        done = next(one for one in finished if one.plan.restore_id == own)
        outage = done.old_server.down if done.old_server is not None else 0.0
        result = RewindResult(self.plan, self.prepared, outage)
        if self.outage is not None:
            result = replace(result, left_out=self.outage.left_out, archived=self.outage.archived)
        try:
            made = backup(self.instance.impatient(_BACKUP_PATIENCE)) if backs_up else None
        except ZsnapdbError as error:
            return replace(result, backup_error=error)
        return replace(result, backup=made)

    def _check(self, session: Session) -> None:
        """Check that the running server is the restored server, without the transactions that the rewind omitted.

        Raises:
            ConsistencyError: a different server was running, and was stopped.
        """
        executed = replay.executed(session, self.plan.flavour) if self.plan.point.gtids is not None else None
        wanted = self.planned.handover.server_id
        wrong = differences(self.plan, _server_id(session), executed, wanted_id=wanted)
        if wrong:
            self.old.stop()
            raise ConsistencyError(
                f"the server that was started is not the restored one: {'; '.join(wrong)}",
                hint="it was stopped; check its option files and its data directory",
            )


def _server_id(session: Session) -> int:
    return int(global_variables(session, ["server_id"])["server_id"])
