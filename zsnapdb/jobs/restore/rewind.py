"""`zsnapdb rewind`: puts the server of an instance back to a point, in place, with what is on this host.

The restore is prepared and proved beside the running server. Only then is the server stopped, the restored datasets
take the place of its own, and it is started again. What was replaced is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from zsnapdb import whole_file
from zsnapdb.config import Settings
from zsnapdb.errors import ConsistencyError, NotThere, PreflightError, ServerError, ZsnapdbError
from zsnapdb.jobs.backup.run import BackupResult, backup
from zsnapdb.jobs.exclusion import for_instance
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.restore import run
from zsnapdb.jobs.restore.handover import is_in_place
from zsnapdb.jobs.restore.journal import Journals, RestoreJournal
from zsnapdb.jobs.restore.rewind_plan import RewindPlan, handover_in, serving_process
from zsnapdb.jobs.restore.without_store import reopen
from zsnapdb.mysql import replay, server_program
from zsnapdb.mysql.service import ServerService, configured_server_id, service_of
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.handover_steps import Promote
from zsnapdb.planning.restore.rewound import ServerIds, StartedServer, differences
from zsnapdb.planning.restore.steps import CheckServer, Recover, RestorePlan
from zsnapdb.zfs import datasets

_POLL_SECONDS = 0.05
_BACKUP_PATIENCE = 30.0
"""For how many seconds the backup at the end waits for a store that is away."""


@dataclass(frozen=True)
class Outage:
    """What the users of the server will notice: how long a start and a stop of the prepared server took, in seconds."""

    plan: RestorePlan
    service: ServerService
    start_seconds: float


@dataclass(frozen=True)
class RewindResult:
    """A rewound server that runs; or, without an `outage`, one that is prepared and waits for --resume.

    `prepared` and `outage` are in seconds: how long this run prepared, and how long the server was down.
    `backup_error` is why the backup of the new history is missing, if one was wanted.
    """

    plan: RestorePlan
    prepared: float
    outage: float | None = None
    backup: BackupResult | None = None
    backup_error: ZsnapdbError | None = None

    @property
    def is_finished(self) -> bool:
        return self.outage is not None

    @property
    def handover(self) -> Promote:
        """The last step: the restored datasets took the place of the server's own."""
        return handover_in(self.plan)


Ask = Callable[[Outage], bool]
"""Called once everything is prepared, before the server is stopped. False: the rewind goes on later, with --resume."""


def rewind(
    settings: Settings, instance: Instance, planned: RewindPlan, ask: Ask, *, backs_up: bool = True
) -> RewindResult:
    """Carry the plan out. Afterwards the server runs in its old place, at the point, and answers.

    An error before the stop changes nothing at the server: the restore waits for --resume, or for
    `zsnapdb restore --abandon`. An error after the stop says how the server is left.
    """
    with for_instance(instance, "rewind", "rewinding"):
        began = time.monotonic()
        before = planned.restore.steps[-2].name
        repository = reopen(instance, planned.restore)
        run.execute(settings, instance, repository, planned.restore, stop_after=before)
        return _Rewinding(settings, instance, planned, time.monotonic() - began).finish(ask, backs_up=backs_up)


def resume(settings: Settings, instance: Instance, ask: Ask, *, backs_up: bool = True) -> RewindResult:
    """Go on with an interrupted rewind, wherever it was interrupted. NotThere if none is under way."""
    with for_instance(instance, "rewind", "rewinding"):
        journals, began = Journals(settings.restore.journal), time.monotonic()
        journal = _under_way(journals, instance)
        if journal is None:
            promoted = _promoted(journals, instance)
            return _Rewinding(settings, instance, _again(instance, promoted), 0.0).start_again(backs_up=backs_up)
        before = journal.plan.steps[-2].name
        if not journal.is_done(before):
            run.resume(settings, instance, journal.plan.layout.top, stop_after=before)
        rewinding = _Rewinding(settings, instance, _again(instance, journal.plan), time.monotonic() - began)
        if is_in_place(journal.plan):
            return rewinding.finish_in_place(backs_up=backs_up)
        return rewinding.finish(ask, backs_up=backs_up)


def _under_way(journals: Journals, instance: Instance) -> RestoreJournal | None:
    begun = [journal for journal in journals.under_way(instance.name) if isinstance(journal.plan.steps[-1], Promote)]
    if len(begun) > 1:
        tops = ", ".join(journal.plan.layout.top for journal in begun)
        raise PreflightError(
            f"several restores of {instance.name} that replace its server are under way: {tops}",
            hint="give all but one up with `zsnapdb restore --abandon --target DATASET`",
        )
    return begun[0] if begun else None


def _promoted(journals: Journals, instance: Instance) -> RestorePlan:
    """Return the plan of the finished restore whose datasets are in place now. NotThere if there is none."""
    for journal in reversed(journals.history(instance.name)):
        if is_in_place(journal.plan):
            return journal.plan
    raise NotThere(f"no rewind of {instance.name} is under way", hint="begin one with --to POINT")


def _again(instance: Instance, planned: RestorePlan) -> RewindPlan:
    """Return the plan of a rewind that an earlier run began."""
    service = service_of(instance.settings.control, serving_process(planned), handover_in(planned).unit)
    file = instance.settings.control.server_id_file
    return RewindPlan(planned, service, file)


class _Rewinding:
    """A rewind whose restore is prepared: the steps during which the server is down."""

    def __init__(self, settings: Settings, instance: Instance, planned: RewindPlan, prepared: float) -> None:
        self.settings = settings
        self.instance = instance
        self.planned = planned
        self.prepared = prepared
        self.outage = 0.0

    @property
    def plan(self) -> RestorePlan:
        return self.planned.restore

    def finish(self, ask: Ask, *, backs_up: bool) -> RewindResult:
        """Ask, then replace the server."""
        journal = run.find(Journals(self.settings.restore.journal), self.instance.name, self.plan.layout.top)
        starts = [step.name for step in self.plan.steps if isinstance(step, Recover | CheckServer)]
        seconds = [done.seconds for done in journal.done if done.step in starts]
        if not ask(Outage(self.plan, self.planned.service, min(seconds, default=0.0))):
            return RewindResult(self.plan, self.prepared)
        self._give_server_id()
        began = time.monotonic()
        try:
            self._stop()
            self._replace(began)
        except BaseException as error:
            error.add_note(self._left_as(error))
            raise
        return self._result(backs_up=backs_up)

    def finish_in_place(self, *, backs_up: bool) -> RewindResult:
        """Go on with a restore whose datasets are in place already. Its server may run, or be stopped."""
        self._give_server_id()
        try:
            self._replace(time.monotonic())
        except BaseException as error:
            error.add_note(self._left_as(error))
            raise
        return self._result(backs_up=backs_up)

    def start_again(self, *, backs_up: bool) -> RewindResult:
        """Start the server of a restore that took its place in an earlier run. One that runs is checked alone.

        That run may be long ago, and nobody was asked about a stop: a server that runs is never stopped here.
        """
        if serving_process(self.plan) is not None:
            with self._session() as session:
                wrong = self._differences(session)
            if wrong:
                raise ConsistencyError(
                    f"the server that runs is not the restored one: {'; '.join(wrong)}",
                    hint="it was not stopped; check its option files, and who has started it",
                )
            return self._result(backs_up=backs_up)
        self._give_server_id()
        try:
            self._start(time.monotonic())
        except BaseException as error:
            error.add_note(self._left_as(error))
            raise
        return self._result(backs_up=backs_up)

    def _give_server_id(self) -> None:
        """Write the option file with the new server_id, and check that the next start will use it."""
        wanted, file = self.planned.handover.server_id, self.planned.server_id_file
        if wanted is None or file is None:
            return
        text = "# Written by zsnapdb rewind. The server was put back: under its old server_id it would reuse GTIDs.\n"
        text += f"[{family(self.plan.flavour).option_section}]\nserver_id = {wanted}\n"
        try:
            whole_file.replace(file, text.encode(), 0o644)
        except OSError as error:
            raise PreflightError(
                f"writing the new server_id to {file}: {error.strerror}",
                hint="control.server_id_file of the instance names the file; its folder must exist",
            ) from error
        process = serving_process(self.plan)
        if process is None:
            # It was stopped by an earlier run, which has checked this. What it will be started with is not known now.
            return
        program = server_program.chosen(self.instance.settings.server, self.plan.flavour, self.plan.server_version)
        seen = configured_server_id(program, process)
        if seen != wanted:
            raise PreflightError(
                f"the next start of the server would not use server_id = {wanted}, which is in {file}, but {seen}",
                hint="name a file that the server reads last, or remove server_id from its other option files and its"
                " command line",
            )

    def _stop(self) -> None:
        self.instance.events.tell(f"stopping the server: {' '.join(self.planned.service.stop_words)}")
        self.planned.service.stop()
        deadline = time.monotonic() + self.planned.service.timeout
        while (process := serving_process(self.plan)) is not None:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"process {process.pid} still serves {self.plan.variables['datadir']} after the stop",
                    hint="see the log of the server; something may have started it again",
                )
            time.sleep(_POLL_SECONDS)

    def _replace(self, began: float) -> None:
        """Put the restored datasets in place, and start the server as soon as they are there."""
        run.resume(self.settings, self.instance, self.plan.layout.top, in_place=lambda: self._start(began))

    def _left_as(self, error: BaseException) -> str:
        """Start the old server again if nothing of it was moved. Return how the server is left."""
        again = f"`zsnapdb rewind {self.instance.name} --resume` goes on"
        if is_in_place(self.plan):
            is_up = "runs" if serving_process(self.plan) is not None else "is stopped"
            return f"the restored datasets are in place, and the server {is_up}; when the reason is mended, {again}"
        if serving_process(self.plan) is not None:
            return f"the old server runs, and nothing was replaced; {again}"
        if isinstance(error, Exception) and self._is_untouched():
            try:
                self.planned.service.start()
            except ZsnapdbError as second:
                return f"the old server is stopped and did not start again: {second.message}; {again}"
            return f"the old server was started again, and nothing was replaced; {again}"
        return f"the server is stopped; {again}"

    def _is_untouched(self) -> bool:
        """Whether the old datasets are still in their place and mounted."""
        parts = self.planned.handover.parts
        if any(part.old is None or datasets.exists(part.old) for part in parts):
            return False
        seen = datasets.properties_of([part.place for part in parts], ["mounted"])
        return all(values["mounted"].value == "yes" for values in seen.values())

    def _start(self, began: float) -> None:
        """Start the server in its place, unless it runs, and check it. `began` is when it went down."""
        if serving_process(self.plan) is not None and not self._has_its_server_id():
            # The host started it by itself after a power cut, without the option file.
            self._stop()
        if serving_process(self.plan) is None:
            self.instance.events.tell(f"starting the server: {' '.join(self.planned.service.start_words)}")
            self.planned.service.start()
        with self._session() as session:
            self.outage = time.monotonic() - began
            self._check(session)

    def _has_its_server_id(self) -> bool:
        wanted = self.planned.handover.server_id
        if wanted is None:
            return True
        with self._session() as session:
            return _server_id(session) == wanted

    def _result(self, *, backs_up: bool) -> RewindResult:
        result = RewindResult(self.plan, self.prepared, self.outage)
        return self._backed_up(result) if backs_up else result

    def _session(self) -> Session:
        """Return a session with the started server. ServerError if it does not answer in time."""
        deadline = time.monotonic() + self.planned.service.timeout
        while True:
            try:
                return self.instance.session()
            except ServerError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _check(self, session: Session) -> None:
        """Stop the server and raise ConsistencyError unless it is the restored one, without what was left out."""
        wrong = self._differences(session)
        if wrong:
            self.planned.service.stop()
            raise ConsistencyError(
                f"the server that was started is not the restored one: {'; '.join(wrong)}",
                hint="it was stopped; check its option files and its data directory",
            )

    def _differences(self, session: Session) -> list[str]:
        executed = replay.executed(session, self.plan.flavour) if self.plan.point.gtids is not None else None
        ids = ServerIds(self.plan.server_id, self.planned.handover.server_id)
        seen = StartedServer(_server_id(session), executed)
        return differences(self.plan.flavour, self.plan.point, ids, seen)

    def _backed_up(self, result: RewindResult) -> RewindResult:
        """Back the new history up. A backup that fails leaves the server as it is, and the error in the result."""
        try:
            made = backup(self.instance.impatient(_BACKUP_PATIENCE))
        except ZsnapdbError as error:
            return replace(result, backup_error=error)
        return replace(result, backup=made)


def _server_id(session: Session) -> int:
    return int(global_variables(session, ["server_id"])["server_id"])
