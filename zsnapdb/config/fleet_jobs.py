"""Settings of a fleet's jobs (fleet-jobs.toml): the schedules of backups, verifications and drills of each instance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator

from zsnapdb.base.files import read_text
from zsnapdb.base.patterns import InstanceName
from zsnapdb.base.quantities import Seconds
from zsnapdb.config.errors import settings_in
from zsnapdb.config.services import ConfigSection, EngineSettings, FleetHostName, FleetVerb, Zone, five_fields

JOBS_PATH = Path("/etc/zsnapdb/fleet-jobs.toml")
_JOBS_EXAMPLE = "`zsnapdb example fleet-jobs.toml` prints an example"
BucketName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")]
HostPattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$")]
"""A shell pattern of host names."""
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
ClockTime = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class FleetScheduleSettings(ConfigSection):
    """Schedule of a fleet job: a cron expression in a time zone, or an interval in seconds, counted from 1970.

    A run starts up to `jitter` seconds after its scheduled time. After `timeout`, the run is stopped and treated as
    failed. Only one run of a job is active at a time.
    """

    cron: Annotated[str, Field(max_length=200), AfterValidator(five_fields)] | None = None
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
    """An instance: its host, the bucket whose limit applies to its jobs, and its own schedules.

    If a schedule is omitted, the schedule in `defaults` applies. The setting `skip` lists the jobs that this instance
    never runs.
    """

    host: FleetHostName
    bucket: BucketName | None = None
    backup: FleetScheduleSettings | None = None
    verify: FleetScheduleSettings | None = None
    skip: tuple[FleetVerb, ...] = ()


class FleetDefaultsSettings(ConfigSection):
    """Default schedules of all instances."""

    backup: FleetScheduleSettings | None = None
    verify: FleetScheduleSettings | None = None


class DrillPoolSettings(ConfigSection):
    """The drills of a fleet.

    Each instance is drilled once in each interval `every`, on any free host that runs drills.
    """

    every: Annotated[Seconds, Field(ge=3600, le=366 * 86400.0)]
    jitter: Annotated[Seconds, Field(ge=0, le=86400)] = 3600.0
    timeout: Annotated[Seconds, Field(ge=60, le=30 * 86400.0)] = 86400.0


class BucketSettings(ConfigSection):
    """Maximum number of concurrent jobs that use a bucket, on all hosts together."""

    limit: Annotated[int, Field(ge=1, le=1000)]


class WindowSettings(ConfigSection):
    """A period in which no job starts on the hosts whose names match one of the patterns in `hosts`.

    If the end is before the start, the period ends on the next day.
    """

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
    """All jobs of a fleet. Instance names are unique within the fleet.

    The list `rollout` contains host patterns. Changes are applied to hosts in the order of the patterns, and last to
    hosts that match no pattern. With `verify_anywhere`, any host that runs drills also verifies instances; this needs
    only access to their repositories.
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
    """Return the settings in the TOML text.

    Raises ConfigError with all errors in the text. The message refers to the text as `name`.
    """
    return settings_in(text, name, FleetJobsSettings, _JOBS_EXAMPLE)


def load_jobs(path: Path | None = None) -> FleetJobsSettings:
    """Return the settings of the file (default: /etc/zsnapdb/fleet-jobs.toml)."""
    chosen = path or JOBS_PATH
    hint = "write one as `zsnapdb example fleet-jobs.toml` shows, or name another file with --jobs"
    return parse_jobs(read_text(chosen, "the jobs of the fleet", hint), str(chosen))
