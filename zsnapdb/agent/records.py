"""The files in which the agent keeps what its jobs did: one per job, replaced atomically and durable on return.

A file that cannot be read counts as absent: the job runs again, and a new file is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from zsnapdb.base import whole_file
from zsnapdb.planning.agent.jobs import JobName
from zsnapdb.planning.agent.runs import GivenRecord, PauseRecord, RunRecord

R = TypeVar("R", bound=BaseModel)


@dataclass(frozen=True)
class Records:
    """The files of the agent below a folder: `<instance>/<job>.json`, `<job>.log`, and `pause.json`.

    A worker of a fleet keeps the runs of its jobs here too, with `<job>.fleet.json` and `<job>.fleet.log`.
    """

    folder: Path

    def run(self, name: JobName) -> RunRecord | None:
        """Return the last run of the job, None if none is known."""
        return _read(self._file(name, ".json"), RunRecord)

    def set_run(self, name: JobName, record: RunRecord) -> None:
        """Keep the last run of the job. OSError if the disk refuses."""
        _write(self._file(name, ".json"), record)

    def log(self, name: JobName) -> Path:
        """Return the file for what the job prints. Its folder exists afterwards."""
        return self._made(self._file(name, ".log"))

    def fleet_log(self, name: JobName) -> Path:
        """Return the file for what the job prints if the fleet has it done. Its folder exists afterwards."""
        return self._made(self._file(name, ".fleet.log"))

    def given(self, name: JobName) -> datetime | None:
        """Return when the fleet gave this host the job last (UTC); None if it is not known that it ever did."""
        record = _read(self._file(name, ".fleet.json"), GivenRecord)
        return record.given if record is not None else None

    def set_given(self, name: JobName, at: datetime) -> None:
        """Keep when the fleet gave this host the job last. OSError if the disk refuses."""
        _write(self._file(name, ".fleet.json"), GivenRecord(given=at))

    def pause(self, instance: str) -> PauseRecord | None:
        """Return the pause of the instance, also one that is over; None if there is none."""
        return _read(self._pause(instance), PauseRecord)

    def set_pause(self, instance: str, pause: PauseRecord | None) -> None:
        """Keep the pause of the instance; None ends it. OSError if the disk refuses."""
        if pause is None:
            self._pause(instance).unlink(missing_ok=True)
        else:
            _write(self._pause(instance), pause)

    def is_paused(self, instance: str, now: datetime) -> bool:
        """Whether no job of the instance begins now."""
        pause = self.pause(instance)
        return pause is not None and pause.until > now

    def _made(self, file: Path) -> Path:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return file

    def _file(self, name: JobName, suffix: str) -> Path:
        return self.folder / name.instance / f"{name.kind.value}{suffix}"

    def _pause(self, instance: str) -> Path:
        return self.folder / instance / "pause.json"


def _read(file: Path, kind: type[R]) -> R | None:
    try:
        return kind.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(file: Path, record: BaseModel) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    whole_file.replace(file, record.model_dump_json().encode())
