"""Runs the jobs of the fleet on this host: it refuses or starts the command, reports its progress, and stops it.

This module does not depend on the engine. `planning/fleet/jobs.py` builds the arguments of a command. The host's own
configuration decides which jobs may run, and is read again for each job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.agent.children import Child, StartChild
from zsnapdb.agent.records import Records
from zsnapdb.base import errors
from zsnapdb.base.errors import BusyError, ZsnapdbError
from zsnapdb.base.patterns import printable
from zsnapdb.base.program_start import is_secret_name
from zsnapdb.config.services import FleetVerb, WorkerSettings
from zsnapdb.config.settings import Settings
from zsnapdb.planning.agent_jobs import JobName, RunRecord, is_good
from zsnapdb.planning.fleet import jobs
from zsnapdb.planning.fleet.jobs import JobAnswer, JobProgress, JobRequest, JobVerdict, verdict

_TAIL = 65536
"""Number of bytes that are read from the end of a log."""
_LONGEST = 300
_SHORTEST_SECRET = 4
_OWN_TEXTS = frozenset(
    kind.code
    for kind in (
        *(errors.UsageError, errors.PreflightError, errors.NotAllowedError, errors.ExistsError, errors.BusyError),
        *(errors.NotFound, errors.UnknownNameError, errors.LeaseError, errors.LockNotGranted, errors.HistoryError),
        *(errors.AmbiguousPointError, errors.ForeignInsideError, errors.NotOursError),
    )
)
"""Codes of errors whose text contains only words of zsnapdb: names of instances and datasets, and advice."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _ProgressLine(_Line):
    event: Literal["progress"]
    step: str
    done: int | None = None
    total: int | None = None

    @property
    def measured_step(self) -> str:
        """The step, if its progress is measured; else "". Only zsnapdb chooses the names of measured steps.

        Other progress lines contain messages, which can contain names of datasets, files and hosts.
        """
        return self.step if self.done is not None else ""


class _ErrorPart(_Line):
    code: str
    message: str = ""


class _ErrorLine(_Line):
    kind: Literal["error"]
    error: _ErrorPart


class LogReader:
    """Reads the growing log of a running command."""

    def __init__(self, log: Path, host: str, environment: Mapping[str, str]) -> None:
        """Read the log of a command with this `environment`.

        Values of secrets in the environment are removed from all texts.
        """
        self._log, self._host = log, host
        values = (value for name, value in environment.items() if is_secret_name(name))
        self._secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)

    def progress(self) -> JobProgress:
        """Return the progress of the command, according to its last progress line."""
        for line in reversed(self._lines()):
            with contextlib.suppress(ValidationError):
                said = _ProgressLine.model_validate_json(line)
                total = max(0, said.total) if said.total is not None else None
                step = self._clean(said.measured_step, 80)
                return JobProgress(host=self._host, step=step, done=max(0, said.done or 0), total=total)
        return JobProgress(host=self._host)

    def error(self) -> tuple[str, str]:
        """Return the code of the command's error, and the part of its text that other hosts may read."""
        for line in reversed(self._lines()):
            with contextlib.suppress(ValidationError):
                said = _ErrorLine.model_validate_json(line).error
                if said.code not in _CODES:
                    return "", ""
                return said.code, self._clean(said.message, _LONGEST) if said.code in _OWN_TEXTS else ""
        return "", ""

    def _clean(self, text: str, longest: int) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return printable(text)[:longest]

    def _lines(self) -> list[bytes]:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
                return log.read(_TAIL).splitlines()
        except OSError:
            return []


_CODES = frozenset(
    kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ZsnapdbError)
) | {"interrupted"}


UNWIND = 300.0
"""Seconds within which a stopped command must end. Meanwhile it releases locks and removes incomplete objects."""
_POLL = 0.1
_BEAT = 2.0
"""Seconds between two reports of progress."""


class JobRefused(Exception):
    """An error: this host refuses the job, and has changed nothing.

    The attribute `kind` says whether to try the job again, and on which hosts.
    """

    def __init__(self, reason: str, kind: JobVerdict) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class JobRunner:
    """Runs the jobs of the host with the name `host` in the fleet. The function `load` reads its configuration.

    Commands run with `environment`. The function `available` returns the bytes of memory that new programs can use.
    """

    host: str
    load: Callable[[], Settings]
    start: StartChild
    environment: Mapping[str, str]
    now: Callable[[], datetime]
    available: Callable[[], int]
    tell: Callable[[str], None]
    unwind: float = UNWIND
    _running: set[JobName] = field(init=False, default_factory=set)

    async def run(self, request: JobRequest, beat: Callable[[JobProgress], None]) -> JobAnswer:
        """Run the job and return its result. The function `beat` is called with the progress every two seconds.

        Raises JobRefused if this host refuses the job. If the caller is cancelled, the command is ended before the
        cancellation proceeds.
        """
        settings, own = self._configuration(request)
        why = jobs.refusal(request, settings, own, self.now())
        if why is not None:
            raise JobRefused(why.reason, why.verdict)
        name, records = jobs.job_name(request.verb, request.instance), Records(settings.agent.state)
        # Even a refused request shows that the fleet is active.
        self._keep_given(records, name)
        last = jobs.drop_future_run(records.run(name), self.now())
        served = jobs.served_by(request, last)
        if served:
            return JobAnswer(host=self.host, exit_code=0, served=served)
        if jobs.is_too_soon(request, last, own, self.now()):
            raise JobRefused(f"{name} began a moment ago on {self.host}", jobs.decide_deferral(request))
        self._refuse_for_now(request, own, records)
        if name in self._running:
            raise JobRefused(f"{name} is already running on {self.host}", jobs.decide_deferral(request))
        self._running.add(name)
        try:
            return await self._command(request, name, records, beat)
        finally:
            self._running.discard(name)

    def _configuration(self, request: JobRequest) -> tuple[Settings, WorkerSettings]:
        try:
            settings = self.load()
        except ZsnapdbError as error:
            # The error's text may contain facts that only this host knows.
            self.tell(f"a job is refused: {error}")
            raise JobRefused(
                f"the configuration of {self.host} cannot be read", jobs.decide_deferral(request)
            ) from error
        if settings.fleet is None or settings.fleet.host != self.host:
            raise JobRefused(f"{self.host} has left the fleet", jobs.decide_deferral(request))
        return settings, settings.fleet

    def _refuse_for_now(self, request: JobRequest, own: WorkerSettings, records: Records) -> None:
        if request.host is None and request.verb is FleetVerb.DRILL and self.available() < own.memory:
            raise JobRefused(f"{self.host} has too little memory for a drill now", jobs.decide_deferral(request))
        if records.pause_at(request.instance, self.now()) is not None:
            raise JobRefused(f"{request.instance} is paused on {self.host}", jobs.decide_deferral(request))

    def _keep_given(self, records: Records, name: JobName) -> None:
        try:
            records.set_given(name, self.now())
        except OSError as error:
            self.tell(f"that the fleet gave {name} cannot be kept: {error}")

    async def _command(
        self, request: JobRequest, name: JobName, records: Records, beat: Callable[[JobProgress], None]
    ) -> JobAnswer:
        began, at = time.monotonic(), self.now()
        before = jobs.drop_future_run(records.run(name), at)
        record = RunRecord.begin(before, request.run_id, jobs.served_until(request, at), at)
        try:
            log = records.fleet_log(name)
            child = self.start(jobs.command_arguments(request), log, request.run_id)
        except OSError as error:
            self.tell(f"{name} cannot be started: {error}")
            raise JobRefused(f"{name} cannot be started on {self.host}", jobs.decide_deferral(request)) from error
        self.tell(f"{name} begins for the fleet, run {request.run_id}")
        reader = LogReader(log, self.host, self.environment)
        code: int | None = None
        try:
            code = await _wait_for_exit(child, reader, beat)
        except BaseException:
            self.tell(f"{name} is ended: the fleet says so, or this worker ends")
            await _end(child, reader, beat, self.unwind)
            code = child.poll()
            raise
        finally:
            if not _did_nothing(request, code):
                self._keep(records, name, record.ended(self.now(), code, child.tail(), is_good=_is_good(code)))
        self.tell(f"{name} ended with {code}")
        said, message = reader.error() if code else ("", "")
        seconds = time.monotonic() - began
        return JobAnswer(host=self.host, exit_code=code, seconds=seconds, error=said, message=message)

    def _keep(self, records: Records, name: JobName, record: RunRecord) -> None:
        """Store the run with the agent's own runs. If the disk is full, the job does not fail.

        A failed run is not recorded for the agent's schedule. Otherwise, a fleet that starts backups and immediately
        stops them would prevent the agent's backups.
        """
        before = jobs.drop_future_run(records.run(name), self.now())
        served = before.scheduled if before is not None else record.scheduled - timedelta(seconds=1)
        scheduled = max(served, record.scheduled) if _is_good(record.exit_code) else served
        try:
            records.set_run(name, record.model_copy(update={"scheduled": scheduled}))
        except OSError as error:
            self.tell(f"the result of {name} cannot be kept: {error}")


def _did_nothing(request: JobRequest, code: int | None) -> bool:
    """Return whether another run was active, or the command failed with an error that another host may avoid.

    If the result is true, the agent and the fleet start the job again.
    """
    if code is None:
        return False
    is_elsewhere = verdict(code, "", anywhere=request.host is None) is JobVerdict.ELSEWHERE
    return code == BusyError.exit_code or is_elsewhere


def _is_good(code: int | None) -> bool:
    return is_good(code, warns_with_one=False)


async def _wait_for_exit(child: Child, reader: LogReader, beat: Callable[[JobProgress], None]) -> int:
    next_beat = 0.0
    while (code := child.poll()) is None:
        if time.monotonic() >= next_beat:
            beat(reader.progress())
            next_beat = time.monotonic() + _BEAT
        await asyncio.sleep(_POLL)
    return code


async def _end(child: Child, reader: LogReader, beat: Callable[[JobProgress], None], patience: float) -> None:
    """Stop the command. The command has `patience` seconds to undo its work.

    Further cancellations wait until the command ends.
    """
    child.stop()
    deadline, ending = time.monotonic() + patience, asyncio.ensure_future(_wait_for_exit(child, reader, beat))
    while not ending.done():
        try:
            await asyncio.wait({ending}, timeout=_POLL)
        except asyncio.CancelledError:
            continue
        if time.monotonic() >= deadline:
            child.kill()
