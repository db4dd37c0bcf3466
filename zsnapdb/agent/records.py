"""Result files of the agent's jobs. Each job has one file, which is replaced atomically and durably.

An unreadable file is treated as missing, so the job runs again and writes a new file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import UsageError
from zsnapdb.base.files import make_private
from zsnapdb.config.notifications import NotificationEvent, NotifiedJob
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.notify.notifier import Notifier, Tell
from zsnapdb.planning.agent_jobs import FleetContact, JobKind, JobName, PauseRecord, RunRecord, jobs_of
from zsnapdb.planning.health.notification_events import Occasion

R = TypeVar("R", bound=BaseModel)


@dataclass(frozen=True)
class Records:
    """The agent's files in a folder: `<instance>/<job>.json`, `<job>.log`, and `pause.json`.

    A fleet worker also stores its runs here, in `<job>.fleet.json` and `<job>.fleet.log`.
    """

    folder: Path

    def run(self, name: JobName) -> RunRecord | None:
        """Return the recorded last run of the job; None if no run is recorded."""
        return _read(self._file(name, ".json"), RunRecord)

    def set_run(self, name: JobName, record: RunRecord) -> None:
        """Store the last run of the job. Raises OSError if the file cannot be written."""
        _write(self._file(name, ".json"), record)

    def log(self, name: JobName) -> Path:
        """Return the path of the file for the job's output. The file's folder is created if it is missing."""
        return self._made(self._file(name, ".log"))

    def fleet_log(self, name: JobName) -> Path:
        """Return the path of the file for a fleet job's output. The file's folder is created if it is missing."""
        return self._made(self._file(name, ".fleet.log"))

    def given(self, name: JobName) -> datetime | None:
        """Return the time (UTC) when the fleet last gave the job to this host; None if unknown."""
        record = _read(self._file(name, ".fleet.json"), FleetContact)
        return record.given if record is not None else None

    def set_given(self, name: JobName, at: datetime) -> None:
        """Store the time when the fleet last gave the job to this host.

        Raises OSError if the file cannot be written.
        """
        _write(self._file(name, ".fleet.json"), FleetContact(given=at))

    def pause(self, instance: str) -> PauseRecord | None:
        """Return the pause of the instance, even if it has ended; None if no pause is stored."""
        return _read(self._pause(instance), PauseRecord)

    def set_pause(self, instance: str, pause: PauseRecord | None) -> None:
        """Store the pause of the instance; None ends the pause. Raises OSError if the file cannot be written."""
        if pause is None:
            self._pause(instance).unlink(missing_ok=True)
        else:
            _write(self._pause(instance), pause)

    def pause_at(self, instance: str, now: datetime) -> PauseRecord | None:
        """Return the pause of the instance that is active at `now`; None if the instance is not paused."""
        recorded = self.pause(instance)
        if recorded is None:
            return None
        pause = recorded.before_clock(now)
        if pause != recorded:
            # If the disk is full, the next turn tries again.
            with contextlib.suppress(OSError):
                self.set_pause(instance, pause)
        return pause if pause.until > now else None

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
    files.replace(file, record.model_dump_json().encode())


_JOBS = {
    JobKind.SNAPSHOT: NotifiedJob.SNAPSHOT,
    JobKind.BACKUP: NotifiedJob.BACKUP,
    JobKind.FULL: NotifiedJob.BACKUP,
    JobKind.VERIFY: NotifiedJob.VERIFY,
    JobKind.DEEP_VERIFY: NotifiedJob.VERIFY,
    JobKind.DRILL: NotifiedJob.DRILL,
    JobKind.PRUNE: NotifiedJob.PRUNE,
    JobKind.COPY: NotifiedJob.COPY,
}


def notify_of_killed(settings: Settings, name: JobName, why: str, at: datetime, tell: Tell) -> None:
    """Send a notification about a failed job in the background, if this kind of job has notifications."""
    job = _JOBS.get(name.kind)
    if job is None or not settings.notifications.to or name.instance not in settings.instance:
        return
    repository = settings.instance[name.instance].repository
    text = f"{name.kind.value} of {name.instance} {why}"
    occasion = Occasion(NotificationEvent.FAILURE, name.instance, job.value, at, text, "", repository)
    threading.Thread(target=_send, args=(settings, occasion, tell), daemon=True).start()


def _send(settings: Settings, occasion: Occasion, tell: Tell) -> None:
    courier = Notifier(settings, tell)
    courier.post(occasion)
    courier.close()


_LONGEST = 31 * 86400.0


def pause(settings: Settings, instance: str, seconds: float, reason: str, host: Host) -> datetime | None:
    """Pause the instance for the next `seconds`, so that its jobs do not start; 0 ends the pause.

    Return the time when the pause ends, or None if there is no pause.

    A running agent applies the pause within ten seconds. Raises UsageError if the pause is too long, or the reason is
    empty or too long.
    """
    name, _ = settings.one_instance(instance)
    if not 0 <= seconds <= _LONGEST:
        raise UsageError("the pause is too long", hint="pause for at most 31d")
    if not 0 < len(reason.strip()) <= 500:
        raise UsageError("the reason is empty or too long", hint="write a reason of at most 500 characters")
    records = Records(settings.agent.state)
    if not seconds:
        records.set_pause(name, None)
        return None
    now = host.now()
    until = now + timedelta(seconds=seconds)
    records.set_pause(name, PauseRecord(since=now, until=until, reason=reason))
    return until


class RunningConfiguration(BaseModel):
    """The configuration of the running agent: its file, the time when it was read (UTC), its digest, and its jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    pid: Annotated[int, Field(gt=0)]
    file: Annotated[str, Field(max_length=4096)]
    read: AwareDatetime
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    jobs: tuple[Annotated[str, Field(max_length=200)], ...]


def note(settings: Settings, file: Path, host: Host) -> None:
    """Record the configuration that this agent process uses.

    Raises OSError or PreflightError if the record cannot be written.
    """
    record = RunningConfiguration(
        pid=os.getpid(),
        file=str(file.absolute()),
        read=host.now(),
        digest=_digest(settings),
        jobs=tuple(_jobs(settings)),
    )
    make_private(host.run)
    files.replace_disposable(_place(host), record.model_dump_json().encode())


def forget(host: Host) -> None:
    """Remove the record, because the agent has ended."""
    with contextlib.suppress(OSError):
        _place(host).unlink(missing_ok=True)


def last_configuration(host: Host) -> RunningConfiguration | None:
    """Return the last recorded configuration of the agent; None if there is no record.

    A killed agent leaves its record behind.
    """
    try:
        return RunningConfiguration.model_validate_json(_place(host).read_bytes())
    except (OSError, ValidationError):
        return None


def difference(running: RunningConfiguration, settings: Settings, file: Path) -> str:
    """Describe how the running agent's configuration differs from this file; return "" if they are equal."""
    if running.digest == _digest(settings):
        return ""
    known, wanted = set(running.jobs), list(_jobs(settings))
    missing = [name for name in wanted if name not in known]
    jobs = f"; it does not run {', '.join(missing)}" if missing else ""
    if Path(running.file) != file.absolute():
        return f"the agent runs with {running.file}, not with {file.absolute()}{jobs}"
    return (
        f"{running.file} has changed since the agent read it at {running.read:%Y-%m-%d %H:%M:%S} UTC{jobs}:"
        f" `kill -HUP {running.pid}` has it read again"
    )


def _jobs(settings: Settings) -> Iterable[str]:
    return (str(job.name) for job in jobs_of(settings))


def _digest(settings: Settings) -> str:
    """Return a digest of the settings; comments are ignored."""
    return hashlib.blake2b(settings.model_dump_json().encode(), digest_size=16).hexdigest()


def _place(host: Host) -> Path:
    return host.run / "agent-configuration.json"
