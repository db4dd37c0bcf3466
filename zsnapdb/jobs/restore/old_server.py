"""The server that a rewind replaces: stopped, and brought back as it was by every way out before the exchange is done.

What is changed at it is written to the journal before it is changed, so that whoever comes later can take it back:
`zsnapdb rewind --resume`, `zsnapdb restore --abandon`, or the run itself after an error.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import text_files, whole_file
from zsnapdb.base.errors import PreflightError, ServerError, ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import production
from zsnapdb.jobs.host.production import dataset_of
from zsnapdb.jobs.record.service_record import service_now_or_before
from zsnapdb.jobs.restore import exchange
from zsnapdb.jobs.steps.restore_journal import Journals, OldServer, RestoreJournal
from zsnapdb.mysql.process.service import ServerService, ServingProcess, serving
from zsnapdb.mysql.schema.schema_catalogue import special_tables
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.backup.fitness import FitnessFinding, unfit
from zsnapdb.planning.restore.exchange import ExchangeState, names_in
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Promote
from zsnapdb.zfs import datasets, version

_POLL_SECONDS = 0.05
_HONOURS_DIRECT = (2, 3)
"""OpenZFS from which O_DIRECT goes past the ARC."""
_LONGEST_OPTION_FILE = 64 << 10


def serving_process(planned: RestorePlan) -> ServingProcess | None:
    """Return the process that serves the data directory of the plan's server; None if none does."""
    return serving(Path(planned.variables["datadir"]))


def judge_end(instance: Instance, planned: RestorePlan) -> list[FitnessFinding]:
    """Return a finding if the server whose place the restore takes would not end cleanly when it is stopped.

    With O_DIRECT, OpenZFS from 2.3 on answers EINVAL to writes of compressed pages. MariaDB 11.8 tries again for ever,
    and direct=disabled lets it end at once; MySQL 9.7 aborts at the first write (tried on OpenZFS 2.3.9).
    """
    if serving_process(planned) is None or version.kernel_release() < _HONOURS_DIRECT:
        return []
    try:
        with instance.session() as session:
            method = global_variables(session, ("innodb_flush_method",)).get("innodb_flush_method", "")
            compressed = special_tables(session).page_compressed if method.startswith("O_DIRECT") else 0
    except ServerError:
        # What does not answer cannot be asked, and has to be put back all the same.
        return []
    places = [place for place, _ in planned.layout.places.values()]
    direct = [place for place in places if datasets.properties(place, ["direct"])["direct"].value != "disabled"]
    if not compressed or not direct:
        return []
    pages = f"{compressed} table(s) have compressed pages, and OpenZFS refuses to write them past the ARC"
    return [unfit("server", f"it would not end cleanly: {pages}", f"zfs set direct=disabled {' '.join(direct)}")]


def wait_for_session(instance: Instance, timeout: float) -> Session:
    """Return a session with the instance's server. ServerError if it does not answer within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return instance.session()
        except ServerError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class OldServerControl:
    """Stops the old server of a rewind, and brings it back."""

    instance: Instance
    journals: Journals
    plan: RestorePlan
    step: Promote

    @property
    def service(self) -> ServerService:
        """How the server is stopped and started. PreflightError if nothing says it."""
        return service_now_or_before(self.instance, serving_process(self.plan), self.step.unit)

    @property
    def record(self) -> OldServer:
        """What was changed at the old server so far, by this run or an earlier one."""
        journal = self.journals.read(self.plan.layout.top)
        return (journal.old_server if journal is not None else None) or OldServer()

    def _note(self, record: OldServer) -> None:
        self.journals.note(self.plan.layout.top, record)

    def write_option_file(self, file: Path, text: str) -> None:
        """Write the option file with the new server_id. The journal has what was in it before."""
        record = self.record
        if record.option_file is None:
            self._note(replace(record, option_file=str(file), option_text=_text_of(file)))
        try:
            whole_file.replace(file, text.encode(), 0o644)
        except OSError as error:
            raise PreflightError(
                f"writing the new server_id to {file}: {error.strerror}",
                hint="control.server_id_file of the instance names the file; its folder must exist",
            ) from error

    def stop(self) -> None:
        """Stop the server. From here on the journal says since when it is down.

        ServerError if it, or another process that serves its files, is there when the time is over.
        """
        service = self.service
        self.instance.events.tell(f"stopping the server: {' '.join(service.stop_words)}")
        self._note(self.record.stopped_at(self.instance.host.now()))
        service.stop()
        deadline = time.monotonic() + service.timeout
        while (process := serving_process(self.plan)) is not None:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"process {process.pid} still serves {self.plan.variables['datadir']} after the stop",
                    hint="see the log of the server; something may have started it again",
                )
            time.sleep(_POLL_SECONDS)

    def is_up(self) -> None:
        """Write down that users have a server again."""
        record = self.record
        if record.stopped is not None:
            self._note(record.up_at(self.instance.host.now()))

    def was_started(self) -> None:
        """Write down that somebody started the old server after a run of ours had stopped it, if it runs now."""
        record, process = self.record, serving_process(self.plan)
        if record.stopped is not None and process is not None and self._is_the_old_one(process):
            self._note(record.up_at(max(record.stopped, process.since)))

    def refuse_busy(self) -> None:
        """Raise PreflightError if other processes than the server would keep its datasets mounted after its stop."""
        process = serving_process(self.plan)
        places = [part.place for part in self.step.parts if part.old is not None]
        production.refuse_busy(places, process.pid if process is not None else None)

    def refuse_another(self) -> None:
        """Raise PreflightError if a server runs in the data directory whose files are on none of the datasets.

        Where they are not mounted, a service may have made an empty server in the folder below (mysqld_pre_systemd does
        so at a boot). Mounting over it would hide its files while it runs.
        """
        process = serving_process(self.plan)
        names = names_in(self.step)
        if process is not None and dataset_of(Path(f"/proc/{process.pid}/cwd")) not in names:
            raise PreflightError(
                f"process {process.pid} serves {self.plan.variables['datadir']} from files that are on none of the"
                f" server's datasets ({', '.join(names)})",
                hint=f"stop it with `{' '.join(self.service.stop_words)}`, and look at its files before they are"
                " hidden by a mount",
            )

    def bring_back(self) -> str:
        """Put the old server back as it was before the rewind, and return in words how it is left.

        Its datasets are in their places and mounted, its option file is as it was, and it runs if a run of ours had
        stopped it. An error says what could not be done. PreflightError, with nothing changed, if the restored datasets
        are all in place: then there is no way back.
        """
        self.refuse_another()
        exchange.swap_back(self.plan, self.step)
        record = self.record
        if record.option_file is not None:
            _write_back(Path(record.option_file), record.option_text)
            self._note(replace(record, option_file=None, option_text=None))
        process = serving_process(self.plan)
        if process is not None and self._is_the_old_one(process):
            self.is_up()
            return "the old server runs, and nothing was replaced"
        if record.stopped is None:
            return "the old server does not run; zsnapdb did not stop it, and nothing was replaced"
        service = self.service
        self.instance.events.tell(f"starting the old server: {' '.join(service.start_words)}")
        service.start()
        wait_for_session(self.instance, service.timeout).close()
        process = serving_process(self.plan)
        if process is None or not self._is_the_old_one(process):
            raise ServerError(
                f"a server answers, but no process serves {self.plan.variables['datadir']} from the old datasets",
                hint="see `ps` and the log of the server",
            )
        self.is_up()
        return "the old server was started again and answers, and nothing was replaced"

    def _is_the_old_one(self, process: ServingProcess) -> bool:
        """Whether the process uses the server's own datasets, by the kernel's number of its filesystem."""
        own = {part.place for part in self.step.parts if part.old is not None}
        return dataset_of(Path(f"/proc/{process.pid}/cwd")) in own

    def left_as(self) -> str:
        """Bring the old server back if the exchange is not done. Return how the server is left. Raises nothing."""
        again = f"`zsnapdb rewind {self.instance.name} --resume` goes on"
        try:
            if exchange.look(self.plan, self.step).state is ExchangeState.IN_PLACE:
                is_up = "runs" if serving_process(self.plan) is not None else "is stopped"
                return f"the restored datasets are in place, and the server {is_up}; when the reason is mended, {again}"
            left = self.bring_back()
        except ZsnapdbError as error:
            return f"{self._seen()}, and the old server could not be brought back: {error.message}; {again}"
        except Exception as error:
            return f"{self._seen()}, and bringing the old server back failed: {error!r}; {again}"
        give_up = f"`zsnapdb restore {self.instance.name} --abandon --target {self.plan.layout.top}` gives it up"
        return f"{left}; {again}, {give_up}"

    def _seen(self) -> str:
        try:
            process = serving_process(self.plan)
        except ZsnapdbError as error:
            return f"whether the server runs is not known ({error.message})"
        return f"process {process.pid} serves the data directory" if process is not None else "the server is stopped"


def control_of(instance: Instance, journals: Journals, journal: RestoreJournal) -> OldServerControl | None:
    """Return the control of the old server if this restore changed anything at one; None if it did not."""
    step = journal.plan.promotion
    if step is None or journal.old_server is None:
        return None
    return OldServerControl(instance, journals, journal.plan, step)


def _text_of(file: Path) -> str | None:
    """Return what is in the option file; None if there is none. PreflightError if it cannot be read as one."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return None
    if status.st_size > _LONGEST_OPTION_FILE:
        raise PreflightError(
            f"{file} has {status.st_size} bytes, and zsnapdb writes it",
            hint="control.server_id_file must name a file that zsnapdb alone writes",
        )
    return text_files.read_text(file, "control.server_id_file", "name a file that zsnapdb alone writes")


def _write_back(file: Path, text: str | None) -> None:
    try:
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
                whole_file.sync_folder(file.parent)
        else:
            whole_file.replace(file, text.encode(), 0o644)
    except OSError as error:
        raise PreflightError(
            f"putting {file} back as it was before the rewind: {error.strerror}",
            hint=f"write it yourself: {text!r}" if text is not None else f"remove {file} yourself",
        ) from error
