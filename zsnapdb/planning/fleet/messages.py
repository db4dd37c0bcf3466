"""What the engine and the hosts tell each other. Each side parses what the other wrote; nothing else passes.

A request has names alone, each of a pattern: never an option, a path or a statement. An answer has no output of other
programs, and no value of the configuration.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from zsnapdb.base.patterns import InstanceName, Moment, RunId, ShortLine
from zsnapdb.config.engine import FleetHostName, FleetVerb
from zsnapdb.config.fleet_jobs import BucketName, WindowSettings

JOB = "zsnapdb-job"
"""The name of the workflow of a job, and of the activity on a host."""
SLOTS = "zsnapdb-slots"
CONTROL = "control"
"""The queue of workflows."""
DRILL = "drill"
ANY = "any"
"""The queues that several hosts serve: drills, and what needs a repository alone."""
OLDEST = timedelta(days=8)
"""How long ago a run can have been planned that a host still does."""
CLOCKS = timedelta(minutes=5)
"""How far clocks may be apart."""


class _Message(BaseModel):
    # A newer control may say more; an older host does what it knows.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    format: Literal[1] = 1


class JobRequest(_Message):
    """What a host is asked to do. `scheduled` (UTC): the time of the schedule that the run serves."""

    verb: FleetVerb
    instance: InstanceName
    run_id: RunId
    scheduled: Moment
    host: FleetHostName | None = None
    """None: any host may do it."""


class JobProgress(_Message):
    """How far a job has come. `step` is a text of zsnapdb."""

    host: FleetHostName
    step: Annotated[str, Field(max_length=80)] = ""
    done: Annotated[int, Field(ge=0, lt=2**63)] = 0
    total: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class JobAnswer(_Message):
    """How a job ended on a host. `served`: the run before it that had done the same already ("": none had)."""

    host: FleetHostName
    exit_code: Annotated[int, Field(ge=-255, le=255)]
    seconds: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    error: Annotated[str, Field(pattern=r"^[a-z-]{0,40}$")] = ""
    message: ShortLine = ""
    served: Annotated[str, Field(max_length=100)] = ""


class FleetJob(_Message):
    """A job as control knows it. `host` None: any host of the queue `queue` may do it.

    `timeout` and `heartbeat` are seconds: how long it may take, and after how long without a word its host counts as
    dead. `run_id` None: that of the schedule's time.
    """

    verb: FleetVerb
    instance: InstanceName
    host: FleetHostName | None = None
    bucket: BucketName | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 1
    windows: tuple[WindowSettings, ...] = ()
    timeout: Annotated[float, Field(ge=1, le=30 * 86400.0)] = 86400.0
    heartbeat: Annotated[float, Field(ge=1, le=3600)] = 15.0
    run_id: RunId | None = None

    @property
    def queue(self) -> str:
        if self.host is not None:
            return queue_of(self.host)
        return DRILL if self.verb is FleetVerb.DRILL else ANY


class SlotsState(_Message):
    """Who holds the slots of a bucket, and who waits for one, in order: ids of workflows."""

    bucket: BucketName
    limit: Annotated[int, Field(ge=1, le=1000)]
    holders: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    most: int = 0
    """How many held one at once."""


def queue_of(host: str) -> str:
    """Return the queue that this host alone serves."""
    return f"host.{host}"


def run_id_of(verb: FleetVerb, instance: str, scheduled: datetime) -> str:
    """Return the id of the run that serves this time of a schedule: always the same, whoever begins it."""
    moment = scheduled.astimezone(UTC).replace(microsecond=0)
    digest = hashlib.blake2b(f"{verb.value}/{instance}/{moment.isoformat()}".encode(), digest_size=4)
    return f"{moment:%Y%m%dT%H%M%SZ}-{digest.hexdigest()}"


def is_timely(scheduled: datetime, now: datetime) -> bool:
    """Whether a host still does what was planned for this time. A server's past is no order."""
    return now - OLDEST <= scheduled <= now + CLOCKS
