"""The settings of the agent: which job runs when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from zsnapdb.quantities import Seconds


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} is no known time zone; write one such as Europe/Berlin") from error
    return name


Zone = Annotated[str, AfterValidator(_known_zone)]
CRON = r"^\s*\S+(\s+\S+){4}\s*$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ScheduleSettings(_Section):
    """When a job runs: by a cron expression in a time zone, or every so many seconds.

    A run begins up to `jitter` seconds later, always the same for the same time. `arguments` are added to the command.
    A run that takes longer than `timeout` is stopped. `timezone`: that of the agent if it is left out.
    """

    cron: Annotated[str, Field(pattern=CRON)] | None = None
    every: Annotated[Seconds, Field(ge=10, le=366 * 86400.0)] | None = None
    timezone: Zone | None = None
    jitter: Annotated[Seconds, Field(ge=0, le=86400)] = 0.0
    timeout: Annotated[Seconds, Field(ge=1, le=30 * 86400.0)] | None = None
    arguments: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_time(self) -> ScheduleSettings:
        if (self.cron is None) == (self.every is None):
            raise ValueError("give exactly one of cron and every")
        return self


class CopyScheduleSettings(ScheduleSettings):
    """When the backups are copied to the repository `to`."""

    to: str


class InstanceAgentSettings(_Section):
    """The jobs of an instance that the agent runs. `archive`: whether it keeps the binlog archive running."""

    archive: bool = False
    snapshot: ScheduleSettings | None = None
    backup: ScheduleSettings | None = None
    full: ScheduleSettings | None = None
    verify: ScheduleSettings | None = None
    deep_verify: ScheduleSettings | None = None
    drill: ScheduleSettings | None = None
    prune: ScheduleSettings | None = None
    purge: ScheduleSettings | None = None
    copy_to: CopyScheduleSettings | None = None
    doctor: ScheduleSettings | None = None


class AgentSettings(_Section):
    """The agent of this host, and the jobs that are about no single instance.

    `metrics`: the file that the status job writes for node_exporter. A job that does nothing for `stall` seconds, so
    that its processes use no processor time and print nothing, is stopped.
    """

    timezone: Zone = "UTC"
    state: Path = Path("/var/lib/zsnapdb/agent")
    metrics: Path | None = None
    stall: Annotated[Seconds, Field(ge=1, le=7 * 86400.0)] = 3600.0
    reap: ScheduleSettings | None = None
    status: ScheduleSettings | None = None
