"""What the running agent was told: its configuration file and its jobs, so that `agent status` can compare them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import whole_file
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.planning.agent.jobs import jobs_of


class RunningConfiguration(BaseModel):
    """The configuration of the running agent: its file, when it was read (UTC), a digest of it, and its jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    pid: Annotated[int, Field(gt=0)]
    file: Annotated[str, Field(max_length=4096)]
    read: AwareDatetime
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    jobs: tuple[Annotated[str, Field(max_length=200)], ...]


def note(settings: Settings, file: Path, host: Host) -> None:
    """Write down what this process, the agent, runs with. OSError or PreflightError if the disk refuses."""
    record = RunningConfiguration(
        pid=os.getpid(),
        file=str(file.absolute()),
        read=host.now(),
        digest=_digest(settings),
        jobs=tuple(_jobs(settings)),
    )
    make_private(host.run)
    whole_file.replace_disposable(_place(host), record.model_dump_json().encode())


def forget(host: Host) -> None:
    """Remove what was written down: no agent runs any more."""
    with contextlib.suppress(OSError):
        _place(host).unlink(missing_ok=True)


def noted(host: Host) -> RunningConfiguration | None:
    """Return what the agent wrote down last; None if that cannot be read. An agent that was killed leaves it."""
    try:
        return RunningConfiguration.model_validate_json(_place(host).read_bytes())
    except (OSError, ValidationError):
        return None


def difference(running: RunningConfiguration, settings: Settings, file: Path) -> str:
    """Return how what the agent runs with differs from this configuration file; "" if it does not."""
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
    """Return a digest of what the configuration says; comments do not count."""
    return hashlib.blake2b(settings.model_dump_json().encode(), digest_size=16).hexdigest()


def _place(host: Host) -> Path:
    return host.run / "agent-configuration.json"
