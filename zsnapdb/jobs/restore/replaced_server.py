"""Stops the server that a rewind replaces, and starts it again if the rewind cannot replace it.

Each change to the server is first recorded in the journal, so that it can be reverted by `zsnapdb rewind --resume`, by
`zsnapdb restore --abandon`, or by the run itself after an error.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.errors import PreflightError, ServerError, ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.host.dataset_use_checks import dataset_of
from zsnapdb.jobs.record.server_unit_record import service_now_or_before
from zsnapdb.jobs.restore import dataset_exchange
from zsnapdb.jobs.steps.exchange_state import look
from zsnapdb.jobs.steps.restore_journal import Journals, OldServer, RestoreJournal, give_up_command
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.process.service import ServerService, ServingProcess, check_options, next_start, serving
from zsnapdb.mysql.schema.schema_catalogue import count_page_compressed
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.backup.fitness import FitnessFinding, unfit
from zsnapdb.planning.health.facts import ways_hint
from zsnapdb.planning.restore.dataset_exchange import ExchangeState, names_in
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Promote
from zsnapdb.planning.server_family import flavour_of
from zsnapdb.planning.start_options import OPTIONS_HINT, describe_refused
from zsnapdb.zfs import datasets, version

_POLL_SECONDS = 0.05
_HONOURS_DIRECT = (2, 3)
"""The first OpenZFS release in which O_DIRECT bypasses the ARC."""
_LONGEST_OPTION_FILE = 64 << 10


def serving_process(planned: RestorePlan) -> ServingProcess | None:
    """Return the process that serves the data directory of the plan's server; None if there is no such process."""
    return serving(Path(planned.variables["datadir"]))


def judge_end(instance: Instance, planned: RestorePlan) -> list[FitnessFinding]:
    """Return a finding if the server that the restore replaces would not stop cleanly. The last step is a promotion.

    With O_DIRECT, OpenZFS 2.3 and later return EINVAL for writes of compressed pages. MariaDB 11.8 retries such a write
    until the property direct=disabled is set. MySQL 9.7 aborts at the first such write. This was observed on OpenZFS
    2.3.9.
    """
    step = planned.promotion
    places = step.replaced if step is not None else []
    if not places or serving_process(planned) is None or version.kernel_release() < _HONOURS_DIRECT:
        return []
    try:
        with instance.session() as session:
            variables = global_variables(session, ("innodb_flush_method", "version"))
            is_direct = variables.get("innodb_flush_method", "").startswith("O_DIRECT")
            compressed = count_page_compressed(session, flavour_of(variables)) if is_direct else 0
    except ServerError:
        # If the server does not answer, skip this check, because a rewind must still be possible.
        return []
    seen = datasets.properties_of(places, ["direct"])
    direct = [place for place in places if seen[place]["direct"].value != "disabled"]
    if not compressed or not direct:
        return []
    pages = f"{compressed} table(s) have compressed pages, and OpenZFS refuses to write them past the ARC"
    return [unfit("server", f"it would not end cleanly: {pages}", f"zfs set direct=disabled {' '.join(direct)}")]


def judge_start(instance: Instance, planned: RestorePlan) -> list[FitnessFinding]:
    """Return a finding if the program of the replaced server refuses its options, so that no data would let it start.

    If the next start is unknown, or the options cannot be checked, the list is empty.
    """
    process, step, settings = serving_process(planned), planned.promotion, instance.settings.server
    try:
        unit = service_now_or_before(instance, process, step.unit if step is not None else None).unit
        program = (
            None if unit is not None else programs.fitting_program(settings, planned.flavour, planned.server_version)
        )
        start = next_start(unit, process, program.path if program is not None else None)
        refused = check_options(start, settings.user) if start is not None else ()
    except ZsnapdbError:
        return []
    return [unfit("server options", describe_refused(refused), OPTIONS_HINT)] if refused and start is not None else []


def wait_for_session(instance: Instance, timeout: float) -> Session:
    """Return a session with the instance's server.

    Raises:
        ServerError: the server does not answer within `timeout` seconds.
    """
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
    """Stops the server that a rewind replaces, and can start it again."""

    instance: Instance
    journals: Journals
    plan: RestorePlan
    step: Promote

    @property
    def service(self) -> ServerService:
        """The commands that stop and start the server. Raises PreflightError if the server's unit is unknown."""
        return service_now_or_before(self.instance, serving_process(self.plan), self.step.unit)

    @property
    def record(self) -> OldServer:
        """The changes to the old server so far, by this run or by an earlier run."""
        journal = self.journals.read(self.plan.layout.top)
        return (journal.old_server if journal is not None else None) or OldServer()

    def _note(self, record: OldServer) -> None:
        self.journals.note(self.plan.layout.top, record)

    def write_option_file(self, file: Path, text: str) -> None:
        """Write the option file with the new server_id. The journal keeps the former content."""
        record = self.record
        if record.option_file is None:
            self._note(replace(record, option_file=str(file), option_text=_text_of(file)))
        try:
            files.replace(file, text.encode(), 0o644)
        except OSError as error:
            raise PreflightError(
                f"writing the new server_id to {file}: {error.strerror}",
                hint="control.server_id_file of the instance names the file; its folder must exist",
            ) from error

    def stop(self) -> None:
        """Record the time of the stop in the journal, then stop the server.

        Raises:
            ServerError: the server, or another process that serves its files, is still running after the timeout.
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
        """Record in the journal that users can reach a server again."""
        record = self.record
        if record.stopped is not None:
            self._note(record.up_at(self.instance.host.now()))

    def was_started(self) -> None:
        """If zsnapdb stopped the old server, and the server is running now, record that it was started again."""
        record, process = self.record, serving_process(self.plan)
        if record.stopped is not None and process is not None and self._is_the_old_one(process):
            self._note(record.up_at(max(record.stopped, process.since)))

    def refuse_busy(self) -> None:
        """Raise PreflightError if other processes would prevent unmounting the datasets after the server is stopped."""
        process = serving_process(self.plan)
        places = [part.place for part in self.step.parts if part.old is not None]
        dataset_use_checks.refuse_busy(places, process.pid if process is not None else None)

    def refuse_another(self) -> None:
        """Raise PreflightError if the data directory is used by a server that has no files on the datasets.

        While the datasets are not mounted, a service may create an empty server in the mount point's folder. For
        example, mysqld_pre_systemd does this at boot. Mounting the datasets would hide the files of that running
        server.
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
        """Return the old server to its state before the rewind, and describe the resulting state as text.

        Afterwards the old datasets have their names again and are mounted, and the option file has its former content.
        If a run of zsnapdb had stopped the server, the server is running again. An error says which action failed.

        Raises:
            PreflightError: all restored datasets are in place, so the old server cannot be restored. Nothing was
                changed.
        """
        self.refuse_another()
        dataset_exchange.swap_back(self.plan, self.step)
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
        """Return whether the process uses the server's own datasets, according to the filesystem's device number."""
        own = {part.place for part in self.step.parts if part.old is not None}
        return dataset_of(Path(f"/proc/{process.pid}/cwd")) in own

    def left_as(self) -> str:
        """Call `bring_back` if the datasets are not completely exchanged. Return the state of the server as text.

        Raises no errors.
        """
        again = f"`zsnapdb rewind {self.instance.name} --resume` continues it"
        try:
            if look(self.plan, self.step).state is ExchangeState.IN_PLACE:
                is_up = "runs" if serving_process(self.plan) is not None else "is stopped"
                hint = ways_hint(f"zsnapdb rewind {self.instance.name} --resume", None)
                return f"the restored datasets are in place, and the server {is_up}; {hint}"
            left = self.bring_back()
        except ZsnapdbError as error:
            return f"{self._seen()}, and the old server could not be brought back: {error.message}; {again}"
        except Exception as error:
            return f"{self._seen()}, and bringing the old server back failed: {error!r}; {again}"
        return f"{left}; {again}, `{give_up_command(self.plan)}` gives it up"

    def _seen(self) -> str:
        try:
            process = serving_process(self.plan)
        except ZsnapdbError as error:
            return f"whether the server runs is not known ({error.message})"
        return f"process {process.pid} serves the data directory" if process is not None else "the server is stopped"


def control_of(instance: Instance, journals: Journals, journal: RestoreJournal) -> OldServerControl | None:
    """Return the object that stops and starts the old server; None if this restore has not changed the server."""
    step = journal.plan.promotion
    if step is None or journal.old_server is None:
        return None
    return OldServerControl(instance, journals, journal.plan, step)


def _text_of(file: Path) -> str | None:
    """Return the content of the option file; None if it does not exist.

    Raises:
        PreflightError: the file is too large or cannot be read as text.
    """
    try:
        status = file.lstat()
    except FileNotFoundError:
        return None
    if status.st_size > _LONGEST_OPTION_FILE:
        raise PreflightError(
            f"{file} has {status.st_size} bytes, more than zsnapdb writes",
            hint="control.server_id_file must name a file that zsnapdb alone writes",
        )
    return files.read_text(file, "control.server_id_file", "name a file that zsnapdb alone writes")


def _write_back(file: Path, text: str | None) -> None:
    try:
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
                files.sync_folder(file.parent)
        else:
            files.replace(file, text.encode(), 0o644)
    except OSError as error:
        raise PreflightError(
            f"putting {file} back as it was before the rewind: {error.strerror}",
            hint=f"write it yourself: {text!r}" if text is not None else f"remove {file} yourself",
        ) from error
