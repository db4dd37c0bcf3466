"""Computes the schedules and limits that the fleet's engine must have, and the changes that create them. Pure.

The module also defines the results that an operator sees: plans, job runs, and paused schedules.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from zsnapdb.base.errors import UsageError
from zsnapdb.config.fleet_jobs import FleetInstanceSettings, FleetJobsSettings, FleetScheduleSettings, WindowSettings
from zsnapdb.config.services import FleetVerb
from zsnapdb.planning.fleet.jobs import FleetJob

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOST = 8
"""The maximum number of consecutive windows that may delay a job."""


def windows_of(host: str, windows: Sequence[WindowSettings]) -> tuple[WindowSettings, ...]:
    """Return the windows for this host."""
    return tuple(one for one in windows if any(fnmatch.fnmatchcase(host, pattern) for pattern in one.hosts))


def closed_until(windows: Sequence[WindowSettings], now: datetime) -> datetime | None:
    """Return the time (UTC) at which the windows that contain this moment end; None if no window contains it."""
    at = now
    for _ in range(_MOST):
        ends = [end for one in windows if (end := _end(one, at)) is not None]
        if not ends:
            break
        at = max(ends)
    return at if at > now else None


def _end(window: WindowSettings, now: datetime) -> datetime | None:
    zone = ZoneInfo(window.timezone)
    local = now.astimezone(zone)
    # A window that began yesterday may end today.
    for day in (local.date() - timedelta(days=1), local.date()):
        if _DAYS[day.weekday()] not in window.days:
            continue
        last = day + timedelta(days=1) if window.end < window.start else day
        # A local time that the clock repeats or skips stands for two moments, and the window contains both.
        start, end = min(_at(day, window.start, zone)), max(_at(last, window.end, zone))
        if start <= now < end:
            return end
    return None


def _at(day: object, text: str, zone: ZoneInfo) -> list[datetime]:
    wall = datetime.fromisoformat(f"{day} {text}").replace(tzinfo=zone)
    return [wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1)]


PREFIX = "zsnapdb/"
"""The prefix of the ids of zsnapdb's schedules. Other schedules are not changed."""
_UNNAMED = "the jobs of the fleet do not name it any more"


class FleetSchedule(FleetScheduleSettings):
    """A schedule of the engine, and the job that it starts."""

    job: FleetJob

    @property
    def name(self) -> str:
        """The name of the schedule, which stays the same when the schedule changes."""
        return f"{PREFIX}{self.job.verb}/{self.job.instance}"

    @property
    def schedule_id(self) -> str:
        """The id in the engine: the name and a digest of the whole schedule.

        With this id, a list of ids shows whether exactly this schedule exists.
        """
        digest = hashlib.blake2b(self.model_dump_json().encode(), digest_size=6).hexdigest()
        return f"{self.name}/{digest}"


class FleetChangeKind(StrEnum):
    """The kind of change to a schedule or a limit."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True)
class PresentSchedule:
    """An existing schedule of the engine. The applied schedule is described in `document` ("" if unknown)."""

    schedule_id: str
    document: str
    is_paused: bool

    @property
    def name(self) -> str:
        """The schedule's name, which is the first part of its id."""
        return self.schedule_id.rpartition("/")[0]

    @property
    def schedule(self) -> FleetSchedule | None:
        """The applied schedule; None if `document` cannot be read."""
        try:
            return FleetSchedule.model_validate_json(self.document)
        except ValidationError:
            return None


@dataclass(frozen=True)
class PresentLimit:
    """The present limit of a bucket in the engine."""

    bucket: str
    limit: int


@dataclass(frozen=True)
class FleetChange:
    """A change, its reason, and the wave of the rollout to which it belongs, counted from 1."""

    kind: FleetChangeKind
    name: str
    reason: str
    wave: int
    schedule: FleetSchedule | None = None
    stale: tuple[str, ...] = ()
    """The ids of schedules that are removed after the new schedule exists.

    If one of the removed schedules was paused, the new schedule is paused too.
    """
    limit: int | None = None
    """The new limit of the bucket `name`; None if the limit is removed, or if the change concerns a schedule."""

    @property
    def is_limit(self) -> bool:
        return not self.name.startswith(PREFIX)


def wanted_schedules(settings: FleetJobsSettings) -> tuple[FleetSchedule, ...]:
    """Return every schedule of the fleet, ordered by name."""
    found = [one for name, instance in settings.instance.items() for one in _of_instance(settings, name, instance)]
    return tuple(sorted(found, key=lambda one: one.name))


def _of_instance(settings: FleetJobsSettings, name: str, own: FleetInstanceSettings) -> Iterator[FleetSchedule]:
    for verb, schedule in (
        (FleetVerb.BACKUP, own.backup or settings.defaults.backup),
        (FleetVerb.VERIFY, own.verify or settings.defaults.verify),
        (FleetVerb.DRILL, _drills(settings)),
    ):
        if schedule is None or verb in own.skip:
            continue
        job = job_of(settings, verb, name)
        yield FleetSchedule(**schedule.model_dump(), job=job.model_copy(update={"timeout": schedule.timeout}))


def _drills(settings: FleetJobsSettings) -> FleetScheduleSettings | None:
    drills = settings.drills
    if drills is None:
        return None
    return FleetScheduleSettings(every=drills.every, jitter=drills.jitter, timeout=drills.timeout)


def job_of(settings: FleetJobsSettings, verb: FleetVerb, instance: str) -> FleetJob:
    """Return the job that runs a verb on a configured instance.

    If any host may do a job, such as a drill, no window delays the job.
    """
    own = settings.instance[instance]
    is_anywhere = verb is FleetVerb.DRILL or (verb is FleetVerb.VERIFY and settings.verify_anywhere)
    host = None if is_anywhere else own.host
    return FleetJob(
        verb=verb,
        instance=instance,
        host=host,
        bucket=own.bucket,
        limit=settings.bucket[own.bucket].limit if own.bucket is not None else 1,
        windows=windows_of(host, settings.window) if host is not None else (),
    )


def changes(
    settings: FleetJobsSettings, present: Sequence[PresentSchedule], limits: Sequence[PresentLimit]
) -> tuple[FleetChange, ...]:
    """Return the changes that make the engine's state match the settings, in rollout order."""
    known: dict[str, list[PresentSchedule]] = {}
    for there in present:
        known.setdefault(there.name, []).append(there)
    needed = {one.name: one for one in wanted_schedules(settings)}
    found = [
        *_limit_changes(settings, {one.bucket: one.limit for one in limits}),
        *(
            change
            for name, one in needed.items()
            if (change := _change(settings, one, known.get(name, []))) is not None
        ),
        *(
            FleetChange(FleetChangeKind.DELETE, name, _UNNAMED, _last(settings), stale=_ids(others))
            for name, others in known.items()
            if name not in needed
        ),
    ]
    return tuple(sorted(found, key=lambda one: (one.wave, not one.is_limit, one.name)))


def _change(settings: FleetJobsSettings, needed: FleetSchedule, known: Sequence[PresentSchedule]) -> FleetChange | None:
    wave = _wave(settings, needed.job.instance)
    others = [one for one in known if one.schedule_id != needed.schedule_id]
    if not known:
        return FleetChange(FleetChangeKind.CREATE, needed.name, "the engine does not have it", wave, needed)
    if not others:
        return None
    stale = _ids(others)
    if len(others) < len(known):
        reason = "an older form of it is still there"
        return FleetChange(FleetChangeKind.DELETE, needed.name, reason, wave, stale=stale)
    before = next((one.schedule for one in others if one.schedule is not None), None)
    differing = ", ".join(_differences(before, needed)) if before is not None else ""
    reason = f"other than before: {differing}" if differing else "what the engine has cannot be read"
    return FleetChange(FleetChangeKind.UPDATE, needed.name, reason, wave, needed, stale)


def _ids(known: Sequence[PresentSchedule]) -> tuple[str, ...]:
    return tuple(one.schedule_id for one in known)


def _differences(before: FleetSchedule, needed: FleetSchedule) -> Iterator[str]:
    for key in FleetScheduleSettings.model_fields:
        if getattr(before, key) != getattr(needed, key):
            yield key
    for key in FleetJob.model_fields:
        if key != "timeout" and getattr(before.job, key) != getattr(needed.job, key):
            yield key


def _limit_changes(settings: FleetJobsSettings, known: Mapping[str, int]) -> Iterator[FleetChange]:
    for bucket, own in settings.bucket.items():
        if bucket not in known:
            reason = f"at most {own.limit} jobs at once"
            yield FleetChange(FleetChangeKind.CREATE, bucket, reason, 1, limit=own.limit)
        elif known[bucket] != own.limit:
            reason = f"at most {own.limit} jobs at once, before {known[bucket]}"
            yield FleetChange(FleetChangeKind.UPDATE, bucket, reason, 1, limit=own.limit)
    for bucket in sorted(set(known) - set(settings.bucket)):
        yield FleetChange(FleetChangeKind.DELETE, bucket, _UNNAMED, _last(settings))


def _wave(settings: FleetJobsSettings, instance: str) -> int:
    host = settings.instance[instance].host
    for number, pattern in enumerate(settings.rollout):
        if fnmatch.fnmatchcase(host, pattern):
            return number + 1
    return _last(settings)


def _last(settings: FleetJobsSettings) -> int:
    return len(settings.rollout) + 1


_KEYS = ("instance", "host", "verb", "bucket")


@dataclass(frozen=True)
class JobFilter:
    """A filter such as `instance=shop*`: a key and a shell pattern."""

    key: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> JobFilter:
        """Return the filter. Raises UsageError if the text is invalid."""
        key, separator, pattern = text.partition("=")
        if key not in _KEYS or not separator or not pattern:
            raise UsageError(
                f"--where {text!r} is not a filter", hint=f"write KEY=PATTERN; a key is one of {', '.join(_KEYS)}"
            )
        return cls(key, pattern)

    def matches(self, job: FleetJob, home: str) -> bool:
        """Return whether the job matches. The argument `home` is the host of its instance, or "" if unknown."""
        value = {"instance": job.instance, "host": job.host or home, "verb": job.verb.value, "bucket": job.bucket or ""}
        return fnmatch.fnmatchcase(value[self.key], self.pattern)


def is_meant(filters: Sequence[JobFilter], job: FleetJob, home: str) -> bool:
    """Return whether the job matches all filters."""
    return all(one.matches(job, home) for one in filters)


@dataclass(frozen=True)
class FleetPlan:
    """The changes that `fleet apply` makes. `unchanged` is the number of schedules and limits that need no change."""

    changes: tuple[FleetChange, ...]
    unchanged: int
    left: int
    """The number of changes in later waves, which are not made now."""


@dataclass(frozen=True)
class PausedJob:
    """A schedule that was paused or resumed, with the reason in `note`."""

    name: str
    verb: str
    instance: str
    note: str


@dataclass(frozen=True)
class JobRun:
    """A run of a job. The field `job` is None if it cannot be read.

    If the run failed, `message` contains the reason. The run ended on the host `host`.

    The state is running, completed, failed, canceled, terminated or timed out.
    """

    workflow_id: str
    job: FleetJob | None
    state: str
    started: datetime
    ended: datetime | None
    host: str = ""
    message: str = ""

    @property
    def place(self) -> str:
        """The host where the run ended, or the only host that may do the job; empty if any host may."""
        return self.host or (self.job.host if self.job is not None else None) or ""

    @property
    def is_bad(self) -> bool:
        """Whether the run ended without success."""
        return self.state not in ("running", "completed")
