"""The restore journals of servers and machines. They also record how a restore changes the server that it replaces."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError, ZsnapdbError
from zsnapdb.jobs.base import run_locks
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.steps.exchange_state import look
from zsnapdb.jobs.steps.journal import JournalFolder, StepJournal
from zsnapdb.mysql.process.service import serving
from zsnapdb.planning.health.facts import ExchangedServer, ExchangeFact, ways_hint
from zsnapdb.planning.restore.dataset_exchange import names_in, ways_out
from zsnapdb.planning.restore.plan import AnyRestorePlan, MachineRestorePlan, RestorePlan


@dataclass(frozen=True)
class OldServer:
    """The changes that a rewind makes to the server that it replaces. If the rewind is abandoned, they are reverted.

    `option_file` is the file with the new server_id, and `option_text` is its former content, or None if it did not
    exist. `stopped` is the time (UTC) at which the server was stopped. It is None if the server was not stopped, or if
    a server is running again. `down` is the downtime in seconds before `stopped`.
    """

    option_file: str | None = None
    option_text: str | None = None
    stopped: datetime | None = None
    down: float = 0.0

    def stopped_at(self, moment: datetime) -> OldServer:
        """Return the record with `moment` as the time of the stop.

        If the record already contains the time of an earlier stop, that time stays.
        """
        return self if self.stopped is not None else replace(self, stopped=moment)

    def up_at(self, moment: datetime) -> OldServer:
        """Return the record for a server that has been running again since `moment`."""
        return replace(self, stopped=None, down=self.seconds_down(moment))

    def seconds_down(self, moment: datetime) -> float:
        """Return for how many seconds users had no server, in total over all runs up to `moment`."""
        now = (moment - self.stopped).total_seconds() if self.stopped is not None else 0.0
        return self.down + max(0.0, now)


@dataclass(frozen=True)
class RestoreJournal(StepJournal[RestorePlan]):
    """The journal of a server's restore. `old_server` contains the changes that a rewind made to the old server."""

    # This field is declared again, because pydantic does not read the type argument of a generic dataclass.
    plan: RestorePlan
    old_server: OldServer | None = None


@functools.cache
def _form() -> TypeAdapter[RestoreJournal]:
    return TypeAdapter(RestoreJournal)


class Journals(JournalFolder[RestoreJournal]):
    """The journals of server restores."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _form)

    def under_way(self, instance: str) -> list[RestoreJournal]:
        """Return the journals of the instance's unfinished restores.

        Raises:
            DamagedError: a journal cannot be read.
        """
        return [journal for journal in self.all_under_way() if journal.plan.instance == instance]

    def history(self, instance: str) -> list[RestoreJournal]:
        """Return the readable journals of the instance's finished restores, oldest first."""
        return [journal for journal in self.finished() if journal.plan.instance == instance]

    def note(self, top: str, old_server: OldServer) -> None:
        """Record the changes to the old server, and sync the record to disk.

        Raises:
            UnknownNameError: there is no unfinished restore to this dataset.
        """
        journal = self.read(top)
        if journal is None:
            raise UnknownNameError(
                f"the restore to {top} was finished or given up meanwhile", hint="see `zfs list`; nothing was changed"
            )
        self.write(replace(journal, old_server=old_server))


@dataclass(frozen=True)
class MachineJournal(StepJournal[MachineRestorePlan]):
    """The journal of a machine's restore."""

    plan: MachineRestorePlan


@functools.cache
def _machine_form() -> TypeAdapter[MachineJournal]:
    return TypeAdapter(MachineJournal)


class MachineJournals(JournalFolder[MachineJournal]):
    """The restore journals of machines. Their folder is below the folder of the server journals."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "machines", _machine_form)


def under_way(instance: Instance) -> tuple[ExchangeFact, ...]:
    """Return the restores that have not finished replacing the instance's server, and whether a server is running.

    Unreadable journals are omitted, because `restore` reports them.
    """
    try:
        journals = Journals(instance.restores).under_way(instance.name)
    except (DamagedError, PreflightError):
        return ()
    return tuple(_fact(journal, instance.host.run) for journal in journals if journal.plan.promotion is not None)


def _fact(journal: RestoreJournal, run: Path) -> ExchangeFact:
    plan, old = journal.plan, journal.old_server
    is_rewind = _is_rewind(journal)
    onward, back = _ways_out(journal)
    was_stopped = old.stopped if old is not None else None
    # Users who stop the server by hand do so before the last step. A rewind records when it stops the server.
    is_last = not is_rewind and all(journal.is_done(one.name) for one in plan.steps[:-1])
    if not (was_stopped is not None or is_last) or _is_served(Path(plan.variables["datadir"])):
        return ExchangeFact(plan.created, None, onward, back, ExchangedServer.RUNS)
    locks = (f"rewind-{plan.instance}", f"restore-{plan.layout.top}")
    is_at_work = any(run_locks.is_held(name, run) for name in locks)
    state = ExchangedServer.AWAY if is_at_work else ExchangedServer.LEFT
    return ExchangeFact(plan.created, was_stopped, onward, back, state)


def give_up_command(plan: AnyRestorePlan) -> str:
    """Return the command that gives the unfinished restore up."""
    return f"zsnapdb restore {plan.instance} --abandon --target {plan.top}"


def ways_out_hint(journal: StepJournal[Any]) -> str:
    """Return a hint with the commands that continue the unfinished restore, and that give it up, if they can work."""
    if isinstance(journal, RestoreJournal):
        return ways_hint(*_ways_out(journal))
    return ways_hint(f"zsnapdb restore {journal.plan.instance} --resume", give_up_command(journal.plan))


def _is_rewind(journal: RestoreJournal) -> bool:
    """Return whether a rewind makes the exchange. Only a rewind knows how to stop and start the server.

    With --handover promote, the user stops and starts it.
    """
    step = journal.plan.promotion
    return journal.old_server is not None or (step is not None and step.unit is not None)


def _ways_out(journal: RestoreJournal) -> tuple[str | None, str | None]:
    """Return the commands that continue the restore and that give it up; None for a command that would be refused."""
    plan, command = journal.plan, "rewind" if _is_rewind(journal) else "restore"
    goes_on, goes_back = True, True
    if plan.promotion is not None:
        try:
            goes_on, goes_back = ways_out(look(plan, plan.promotion))
        except ZsnapdbError:
            goes_on, goes_back = ways_out(None)
    onward = f"zsnapdb {command} {plan.instance} --resume"
    return onward if goes_on else None, give_up_command(plan) if goes_back else None


def _is_served(datadir: Path) -> bool:
    """Return whether a server runs on the data directory. A user or a killed zsnapdb run may have started it."""
    try:
        return serving(datadir) is not None
    except PreflightError:
        # Several servers are running on the data directory, so it is in use.
        return True


def claimed(journals: Journals) -> dict[str, str]:
    """Return every dataset that belongs to an unfinished restore, with its instance.

    No other run may use these datasets.

    Raises:
        DamagedError: a journal cannot be read, so its restore's datasets are unknown.
    """
    names = {}
    for journal in journals.all_under_way():
        plan, step = journal.plan, journal.plan.promotion
        own = [plan.layout.top, *plan.layout.datasets.values()]
        for name in own + (names_in(step) if step is not None else []):
            names[name] = plan.instance
    return names
