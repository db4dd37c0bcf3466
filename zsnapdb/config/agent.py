"""Settings of the agent: schedules of jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, StrictBool, model_validator

from zsnapdb.base.quantities import Seconds
from zsnapdb.config.section import AbsolutePath, ConfigSection


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} is not a known time zone; use a name such as Europe/Berlin") from error
    return name


Zone = Annotated[str, AfterValidator(_known_zone)]
_CRON = r"^\s*\S+(\s+\S+){4}\s*$"


CRON_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Schedules of crontab(5) that are no five fields, and the same as five fields."""


def five_fields(cron: str) -> str:
    """Return a cron expression. Raise ValueError if it has not five fields."""
    if cron.strip() in CRON_NICKNAMES:
        raise ValueError(f'a cron expression has five fields; write "{CRON_NICKNAMES[cron.strip()]}"')
    if re.search(_CRON, cron) is None:
        raise ValueError(
            f"a cron expression has five fields (minute, hour, day of the month, month, weekday), and this one has"
            f' {len(cron.split())}; write such as "0 3 * * *"'
        )
    return cron


class ScheduleSettings(ConfigSection):
    """Schedule of a job: a cron expression in a time zone, or an interval in seconds.

    Cron expressions are those of crontab(5). Weekdays are 0 to 7 (0 and 7 are Sunday) or sun to sat. If both a day of
    the month and a weekday are given, either one suffices. A run starts up to `jitter` seconds later, by the same delay
    for the same scheduled time. `arguments` are added to the command. A run is stopped after `timeout`. The default of
    `timezone` is that of the agent.
    """

    example: ClassVar[str] = '{ every = "1d" }` or `{ cron = "0 3 * * *" }'

    cron: Annotated[str, AfterValidator(five_fields)] | None = None
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
    """Schedule for copying the backups to the repository `to`."""

    to: str


class InstanceAgentSettings(ConfigSection):
    """Jobs of an instance that the agent runs. `archive`: whether it keeps the binlog archive running."""

    archive: StrictBool = False
    snapshot: ScheduleSettings | None = None
    backup: ScheduleSettings | None = None
    full: ScheduleSettings | None = None
    verify: ScheduleSettings | None = None
    deep_verify: ScheduleSettings | None = None
    drill: ScheduleSettings | None = None
    prepare: ScheduleSettings | None = None
    pool: ScheduleSettings | None = None
    prune: ScheduleSettings | None = None
    purge: ScheduleSettings | None = None
    copy_to: CopyScheduleSettings | None = None
    doctor: ScheduleSettings | None = None


_LOOPBACK = ("127.0.0.1", "::1")


class HttpSettings(ConfigSection):
    """Address of the agent's endpoints /metrics, /healthz and /readyz. Beyond loopback it needs TLS and a token.

    `stale`: maximum age in seconds of the last check of the objectives; after that /readyz reports an error.
    """

    address: Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+$")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9807
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None
    token_file: AbsolutePath | None = None
    stale: Annotated[Seconds, Field(ge=10, le=31 * 86400.0)] = 1800.0

    @model_validator(mode="after")
    def _is_safe(self) -> HttpSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give certificate and key, or neither")
        if self.address not in _LOOPBACK and (self.certificate is None or self.token_file is None):
            raise ValueError("an address beyond loopback needs certificate, key and token_file")
        return self


class AgentSettings(ConfigSection):
    """The agent of this host, and the jobs that belong to no single instance.

    `metrics`: the file that the status job writes for node_exporter. A job is stopped if it is inactive for `stall`
    seconds: its processes use no processor time and print nothing.
    """

    timezone: Zone = "UTC"
    state: AbsolutePath = Path("/var/lib/zsnapdb/agent")
    metrics: AbsolutePath | None = None
    stall: Annotated[Seconds, Field(ge=1, le=7 * 86400.0)] = 3600.0
    reap: ScheduleSettings | None = None
    status: ScheduleSettings | None = None
    http: HttpSettings | None = None

    @property
    def metrics_file(self) -> Path | None:
        """The file that the status job writes: for node_exporter, or for the agent's own endpoint /metrics."""
        return self.metrics or (self.state / "status.prom" if self.http is not None else None)

    @model_validator(mode="after")
    def _is_judged(self) -> AgentSettings:
        if self.http is not None and self.status is None:
            raise ValueError('http serves the results of the status job; set status = { every = "5m" }')
        return self
