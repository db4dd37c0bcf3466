"""Tables of the configuration for the agent, clones and the engine, and the base class of all tables."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationInfo,
    field_validator,
    model_validator,
)

from zsnapdb.base.patterns import is_loopback
from zsnapdb.base.quantities import QUANTITIES, Seconds, Size, size

HIDDEN = object()
"""Marks the type of a setting whose value is a secret, so that `config show` does not print the value."""


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        reason = "; ~ is not expanded" if str(path).startswith("~") else ""
        raise ValueError(f'write an absolute path, such as "/etc/zsnapdb/{path.name or "file"}"{reason}')
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
"""Absolute path in a setting. Relative paths are refused, because commands and services run in different folders."""


class ConfigSection(BaseModel):
    """A table of the configuration. Unknown keys are errors, and error messages contain no value."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switch(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false as numbers, because pydantic would read `last = true` as 1."""
        if isinstance(value, bool) and info.field_name is not None:
            field = cls.model_fields[info.field_name]
            kinds = {field.annotation, *get_args(field.annotation)}
            is_quantity = any(getattr(one, "func", None) in QUANTITIES for one in field.metadata)
            if kinds & {int, float} and not kinds & {bool, str} and not is_quantity:
                raise ValueError("must be a number, not true or false")
        return value


CommandWords = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""A program and its arguments, or a text with only the program."""


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
"""The named schedules of crontab(5), each with the equivalent five fields."""


def five_fields(cron: str) -> str:
    """Return the cron expression unchanged. Raise ValueError if it does not have five fields."""
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
    the month and a weekday are given, the job runs on days that match one of them. A run starts up to `jitter` seconds
    later; the delay is fixed for each scheduled time. The `arguments` are added to the command. A run is stopped after
    `timeout`. The default of `timezone` is the agent's time zone.
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
    """Schedule of the job that copies backups to the repository `to`."""

    to: str


class InstanceAgentSettings(ConfigSection):
    """Jobs of an instance that the agent runs. With `archive`, the agent archives binlogs continuously."""

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
    """Address of the agent's endpoints /metrics, /healthz and /readyz.

    An address other than loopback needs TLS and a token. The setting `stale` is the maximum age in seconds of the last
    check of the objectives. If the check is older, /readyz reports an error.
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

    The setting `metrics` is the file that the status job writes for node_exporter. A job is stopped after `stall`
    seconds in which its processes use no processor time and print nothing.
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
        """The file that the status job writes, for node_exporter or for the agent's own endpoint /metrics."""
        return self.metrics or (self.state / "status.prom" if self.http is not None else None)

    @model_validator(mode="after")
    def _is_judged(self) -> AgentSettings:
        if self.http is not None and self.status is None:
            raise ValueError('http serves the results of the status job; set status = { every = "5m" }')
        return self


_MOST_PORTS = 1000


class AddressSettings(ConfigSection):
    """Ports where HAProxy listens for clones, from `first_port` to `last_port`, and HAProxy's admin socket.

    Each clone that listens at `clones.bind_address` has a reserved port. The clone's server, behind HAProxy, has a
    different port.
    """

    socket: AbsolutePath = Path("/run/zsnapdb-haproxy/admin.sock")
    first_port: Annotated[int, Field(ge=1024, le=65535)] = 23170
    last_port: Annotated[int, Field(ge=1024, le=65535)] = 23269

    @model_validator(mode="after")
    def _range(self) -> AddressSettings:
        if not 0 <= self.last_port - self.first_port < _MOST_PORTS:
            raise ValueError(f"first_port to last_port must be 1 to {_MOST_PORTS} ports")
        return self

    @property
    def ports(self) -> range:
        return range(self.first_port, self.last_port + 1)


LEAST_MEMORY = 100 << 20
"""Minimum memory of a server in bytes. Servers with a small buffer pool used 113 MB (MariaDB) and 162 MB (MySQL)."""


class PoolSettings(ConfigSection):
    """A pool of `size` clones that are started and checked in advance, for the next requests.

    A pool clone contains the data that was newest when the clone was created. If this data is more than `max_age`
    seconds old, the clone is not handed out. The setting `memory` limits the memory of all servers of the pool
    together, in bytes (None: only half of the host's free memory).
    """

    size: Annotated[int, Field(ge=1, le=50)]
    max_age: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] = 86400.0
    memory: Annotated[Size, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_room(self) -> PoolSettings:
        if self.memory is not None and self.memory < self.size * LEAST_MEMORY:
            raise ValueError(
                f"a pool of {self.size} needs at least {size(self.size * LEAST_MEMORY)} of memory, and has"
                f" {size(self.memory)}"
            )
        return self


class MigrationSettings(ConfigSection):
    """The user's migration, and its limits.

    `zsnapdb migration-check` runs `command` in the current folder, for at most `timeout` seconds. A migration longer
    than `longest` is a problem. It is also a problem if a statement of another client waits longer than
    `longest_read_wait` or `longest_write_wait` seconds for a table. With `repeatable`, a second run must succeed and
    leave the schema unchanged. If a limit is None, it does not apply.
    """

    command: CommandWords = ()
    timeout: Annotated[Seconds, Field(gt=0, le=7 * 86400.0)] = 3600.0
    longest: Annotated[Seconds, Field(gt=0)] | None = None
    longest_read_wait: Annotated[Seconds, Field(gt=0)] | None = 1.0
    longest_write_wait: Annotated[Seconds, Field(gt=0)] | None = 1.0
    repeatable: StrictBool = False


HOST_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
FleetHostName = Annotated[str, Field(pattern=rf"^{HOST_NAME}$")]
"""Name of a host of a fleet.

The host's certificate contains this name, and the name of the host's queue ends with it.
"""
_ADDRESS = r"^(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):[0-9]{1,5}$"


class FleetVerb(StrEnum):
    """Jobs that the engine may run on a host.

    A job can be repeated, because work that is already complete is only reported.
    """

    BACKUP = "backup"
    DRILL = "drill"
    VERIFY = "verify"


class EngineSettings(ConfigSection):
    """Address of the engine (Temporal). An address other than loopback needs TLS with a client certificate.

    The setting `ca` is the authority of the server's certificate; None means the authorities of this host. The setting
    `server_name` is the name in that certificate; None means the name in the address.
    """

    server: Annotated[str, Field(pattern=_ADDRESS)]
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")] = "fleet"
    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] | None = None

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is a loopback address or localhost."""
        return is_loopback(self.server.rpartition(":")[0].strip("[]"))

    @model_validator(mode="after")
    def _is_safe(self) -> EngineSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give certificate and key, or neither")
        if self.certificate is None and (self.ca is not None or self.server_name is not None):
            raise ValueError("ca and server_name mean nothing without certificate and key")
        if self.certificate is None and not self.is_loopback:
            raise ValueError(
                "a server that is not on loopback needs certificate and key, or anyone could query this host"
            )
        return self


class WorkerSettings(EngineSettings):
    """Jobs that this host runs for a fleet (`zsnapdb fleet worker`).

    The setting `host` is this host's name in the fleet. The host runs only the `verbs` and refuses all other requests.
    With `drills`, this host also runs drills of configured instances that any host may run, if `memory` (bytes) is
    available. The setting `at_once` is the maximum number of concurrent jobs. The setting `spacing` is the minimum
    number of seconds between the starts of two runs for one job. With `fallback` agent, the agent starts a scheduled
    backup if the fleet has not started it within `fallback_after` seconds. With `fallback` none, the agent follows its
    own schedules as if there were no fleet.
    """

    host: FleetHostName
    verbs: Annotated[tuple[FleetVerb, ...], Field(min_length=1)] = tuple(FleetVerb)
    drills: StrictBool = False
    memory: Annotated[Size, Field(ge=0)] = 1 << 30
    at_once: Annotated[int, Field(ge=1, le=16)] = 2
    spacing: Annotated[Seconds, Field(ge=0, le=86400)] = 60.0
    fallback: Literal["agent", "none"] = "agent"
    fallback_after: Annotated[Seconds, Field(ge=60, le=31 * 86400.0)] = 7200.0

    @field_validator("verbs")
    @classmethod
    def _each_once(cls, verbs: tuple[FleetVerb, ...]) -> tuple[FleetVerb, ...]:
        if len(set(verbs)) != len(verbs):
            raise ValueError("a verb is named twice")
        return verbs

    @model_validator(mode="after")
    def _may_drill(self) -> WorkerSettings:
        if self.drills and FleetVerb.DRILL not in self.verbs:
            raise ValueError('`drills` is set, so `verbs` must contain "drill"')
        return self
