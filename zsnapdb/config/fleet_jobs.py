"""Reads the jobs of a fleet, fleet-jobs.toml: which instance of which host is backed up, verified and drilled when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

from zsnapdb.base.patterns import InstanceName
from zsnapdb.base.quantities import Seconds
from zsnapdb.base.text_files import read_text
from zsnapdb.config.agent import CRON, Zone
from zsnapdb.config.engine import EngineSettings, FleetHostName, FleetVerb
from zsnapdb.config.errors import settings_in
from zsnapdb.config.section import ConfigSection

JOBS_PATH = Path("/etc/zsnapdb/fleet-jobs.toml")
_JOBS_EXAMPLE = "`zsnapdb example fleet-jobs.toml` prints an example"
BucketName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")]
HostPattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$")]
"""A pattern of host names, as a shell has them."""
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
ClockTime = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class FleetScheduleSettings(ConfigSection):
    """When a job of the fleet begins: by a cron expression in a time zone, or every so many seconds since 1970.

    A run begins up to `jitter` seconds later. One that is not over after `timeout` is ended, and counts as failed.
    While a run of the same job is under way no other begins.
    """

    cron: Annotated[str, Field(pattern=CRON, max_length=200)] | None = None
    every: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] | None = None
    timezone: Zone = "UTC"
    jitter: Annotated[Seconds, Field(ge=0, le=86400)] = 0.0
    timeout: Annotated[Seconds, Field(ge=60, le=30 * 86400.0)] = 86400.0

    @model_validator(mode="after")
    def _one_time(self) -> FleetScheduleSettings:
        if (self.cron is None) == (self.every is None):
            raise ValueError("give exactly one of cron and every")
        return self


class FleetInstanceSettings(ConfigSection):
    """An instance: its host, the bucket whose limit its jobs count for, and schedules of its own.

    A schedule that is left out is that of `defaults`; `skip` names verbs that it does not have at all.
    """

    host: FleetHostName
    bucket: BucketName | None = None
    backup: FleetScheduleSettings | None = None
    verify: FleetScheduleSettings | None = None
    skip: tuple[FleetVerb, ...] = ()


class FleetDefaultsSettings(ConfigSection):
    """The schedules of instances that have none of their own."""

    backup: FleetScheduleSettings | None = None
    verify: FleetScheduleSettings | None = None


class DrillPoolSettings(ConfigSection):
    """Drills: each instance once in `every`, on any free host that takes drills."""

    every: Annotated[Seconds, Field(ge=3600, le=366 * 86400.0)]
    jitter: Annotated[Seconds, Field(ge=0, le=86400)] = 3600.0
    timeout: Annotated[Seconds, Field(ge=60, le=30 * 86400.0)] = 86400.0


class BucketSettings(ConfigSection):
    """How many jobs of a bucket run at once, on all hosts together."""

    limit: Annotated[int, Field(ge=1, le=1000)]


class WindowSettings(ConfigSection):
    """A time in which no job begins on these hosts. A window that ends before it starts ends on the next day."""

    hosts: Annotated[tuple[HostPattern, ...], Field(min_length=1)] = ("*",)
    days: Annotated[tuple[Weekday, ...], Field(min_length=1)] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    start: ClockTime
    end: ClockTime
    timezone: Zone = "UTC"

    @model_validator(mode="after")
    def _has_a_length(self) -> WindowSettings:
        if self.start == self.end:
            raise ValueError("start and end are the same time")
        return self


class FleetJobsSettings(ConfigSection):
    """All jobs of a fleet. Names of instances are unique in it.

    `rollout` are patterns of hosts: changes are made in this order, hosts that no pattern names last. With
    `verify_anywhere` any host that takes drills verifies an instance: that needs its repository alone.
    """

    engine: EngineSettings
    instance: Annotated[dict[InstanceName, FleetInstanceSettings], Field(min_length=1, max_length=20_000)]
    defaults: FleetDefaultsSettings = FleetDefaultsSettings.model_construct()
    drills: DrillPoolSettings | None = None
    verify_anywhere: StrictBool = False
    bucket: Annotated[dict[BucketName, BucketSettings], Field(max_length=100)] = Field({})
    window: Annotated[tuple[WindowSettings, ...], Field(max_length=50)] = ()
    rollout: Annotated[tuple[HostPattern, ...], Field(max_length=50)] = ()

    @model_validator(mode="after")
    def _names_are_known(self) -> FleetJobsSettings:
        for name, instance in self.instance.items():
            if instance.bucket is not None and instance.bucket not in self.bucket:
                raise ValueError(f"instance.{name} names bucket {instance.bucket!r}, which has no limit")
        return self


def parse_jobs(text: str, name: str) -> FleetJobsSettings:
    """Return the settings in the TOML text. `name` is its name in errors. ConfigError lists all errors in the text."""
    return settings_in(text, name, FleetJobsSettings, _JOBS_EXAMPLE)


def load_jobs(path: Path | None = None) -> FleetJobsSettings:
    """Return the settings of the file (default: /etc/zsnapdb/fleet-jobs.toml)."""
    chosen = path or JOBS_PATH
    hint = "write one as `zsnapdb example fleet-jobs.toml` shows, or name another file with --jobs"
    return parse_jobs(read_text(chosen, "the jobs of the fleet", hint), str(chosen))
