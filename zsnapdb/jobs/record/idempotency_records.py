"""The records of runs whose ids were chosen by the callers: the action of each run, its state, and its result.

The file of a run is `<runs>/<day in the id>/<id>.json`.

A record is written before the run changes anything. It is updated at the end of the run, before the caller gets the
result. If the result is lost, the repeated command gets the result from the record. The records of a day are removed
after `KEPT_DAYS`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import BusyError, DamagedError, PreflightError
from zsnapdb.base.files import make_private
from zsnapdb.base.patterns import Moment, RunId, Seconds, Words, first_problem
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.planning import idempotency
from zsnapdb.planning.clock_guard import ClockReading, RemovalTime, was_set_back
from zsnapdb.planning.idempotency import Action as Action
from zsnapdb.planning.idempotency import RunDecision, RunState
from zsnapdb.planning.idempotency import RunVerdict as RunVerdict
from zsnapdb.planning.repository.host_backup_record import RecordPart

_DAY_FOLDER = re.compile(r"[0-9]{8}")
_TEXT_BYTES = 64 << 20


class OnceRecord(RecordPart):
    """The record of a run: its action, its state, and its result as text and as a JSON document.

    `boot` is the boot id ("" if unknown), and `steady` is the time of the steady clock in seconds. Both were read at
    the time `began`.
    """

    format: Literal[1] = 1
    run_id: RunId
    verb: Words
    about: Words
    aim: tuple[Words, ...] = ()
    state: RunState = RunState.BEGUN
    began: Moment
    boot: Words = ""
    steady: Seconds = 0.0
    ended: Moment | None = None
    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    text: Annotated[str, Field(max_length=_TEXT_BYTES)] = ""
    document: Annotated[str, Field(max_length=_TEXT_BYTES)] = ""

    @property
    def is_done(self) -> bool:
        return self.state is RunState.DONE

    @property
    def action(self) -> Action:
        return Action(self.verb, self.about, self.aim)


@dataclass(frozen=True)
class OnceRecords:
    """The records of all runs on this host whose ids were chosen by the callers."""

    host: Host

    def file(self, run: str) -> Path:
        return self.host.runs / idempotency.day_of(run) / f"{run}.json"

    def read(self, run: str) -> OnceRecord | None:
        """Return the record of the run; None if there is none.

        Raises:
            DamagedError: the record cannot be read.
            PreflightError: the file cannot be opened.
        """
        file = self.file(run)
        try:
            known = OnceRecord.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PreflightError(f"reading {file}: {error.strerror}", hint="run zsnapdb as root") from error
        except ValidationError as error:
            raise DamagedError(
                f"the record of run {run}, {file}, cannot be read: {first_problem(error)}",
                hint="check the effects of the run, then remove the file, or choose another id",
            ) from error
        if known.run_id != run:
            raise DamagedError(f"{file} is the record of run {known.run_id}", hint="remove the file")
        return known

    def decide(self, run: str, action: Action, known: OnceRecord | None) -> RunDecision:
        """Return whether the run may execute the action, or which recorded result it returns instead."""
        state = known.state if known is not None else RunState.BEGUN
        # The sweep of old records uses the earlier of two times, and this check the later one. So if a run passes this
        # check, its record still exists.
        time, before = removal_time(self.host), known.action if known is not None else None
        return idempotency.decide(run, action, before, state, time.latest, is_sure=time.is_sure)

    def begin(self, run: str, action: Action) -> OnceRecord:
        """Record that the run begins. Also remove old records, whose runs can no longer be repeated."""
        record = OnceRecord(run_id=run, verb=action.verb, about=action.about, aim=action.aim, began=self.host.now())
        if (now := self.host.reading()) is not None:
            record = record.model_copy(update={"began": now.wall, "boot": now.boot, "steady": now.steady})
        self._write(record)
        self._sweep()
        return record

    def began_early(self, known: OnceRecord) -> bool:
        """Return whether the clock was certainly ahead when the run began."""
        now = self.host.reading()
        before = ClockReading(known.began, known.boot, known.steady)
        return now is not None and bool(known.boot) and was_set_back(before, now)

    def end(self, record: OnceRecord, exit_code: int, text: str, document: str) -> OnceRecord:
        """Record the end of the run and its result. When this function returns, the record is safely on disk."""
        answer = {"exit_code": exit_code, "text": text, "document": document}
        done = record.model_copy(update={"state": RunState.DONE, "ended": self.host.now(), **answer})
        self._write(done)
        return done

    def note_given_up(self, run: str) -> None:
        """If there is a record of the run, record that its action was abandoned.

        After that, a repeated run does not start the action again. If `run` is empty, nothing is recorded, because the
        journals of older versions contain no run id.
        """
        known = self.read(run) if run else None
        if known is not None and not known.is_done:
            self._write(known.model_copy(update={"state": RunState.GIVEN_UP, "ended": self.host.now()}))

    @contextlib.contextmanager
    def alone(self, run: str, action: Action, patience: float, tell: Callable[[str], None]) -> Iterator[None]:
        """Run the block while no other process of this host executes the run with the given id.

        Raises:
            BusyError: another process is still executing the run after `patience` seconds.
        """
        doing = f"doing run {run}, `{action.verb}` of {action.about}"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(
                    exclusive(f"run-{run}", doing=doing, patience=patience, folder=self.host.run, tell=tell)
                )
            except BusyError as error:
                hint = f"repeat the command with `--once {run}`: it does nothing that run {run} has done"
                raise BusyError(error.message, hint=hint) from error
            yield

    def _write(self, record: OnceRecord) -> None:
        file = self.file(record.run_id)
        try:
            make_private(self.host.runs)
            make_private(file.parent)
            files.replace(file, record.model_dump_json().encode())
        except OSError as error:
            raise PreflightError(
                f"recording run {record.run_id} in {file}: {error.strerror}",
                hint="free space there; without a record the command could run twice",
            ) from error

    @staticmethod
    def _is_old(folder: Path, time: RemovalTime) -> bool:
        """Return whether no run of this day can be repeated any more.

        If the day is in the future, the clock was ahead. Then the records age since the last change of the folder, and
        only while the clock is right.
        """
        day = f"{folder.name}T"
        if not (time.is_sure and idempotency.is_ahead(day, time.latest)):
            return idempotency.is_too_old(day, time.at)
        changed = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        if time.is_from_future(changed):
            os.utime(folder, (time.latest.timestamp(), time.latest.timestamp()))
        return changed < time.at - timedelta(days=idempotency.KEPT_DAYS)

    def _sweep(self) -> None:
        time = removal_time(self.host)
        with contextlib.suppress(OSError):
            for folder in self.host.runs.iterdir():
                if _DAY_FOLDER.fullmatch(folder.name) and self._is_old(folder, time):
                    for file in folder.iterdir():
                        file.unlink()
                    folder.rmdir()
