"""What an operator of a fleet is told: a plan, runs of jobs, and schedules that were paused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from zsnapdb.planning.fleet.messages import FleetJob
from zsnapdb.planning.fleet.schedules import FleetChange


@dataclass(frozen=True)
class FleetPlan:
    """What `fleet apply` changes. `unchanged` counts the schedules and limits that are right already."""

    changes: tuple[FleetChange, ...]
    unchanged: int
    left: int
    """How many changes are of later waves, and are not made now."""


@dataclass(frozen=True)
class PausedJob:
    """A schedule that was paused or resumed. `note` says why."""

    name: str
    verb: str
    instance: str
    note: str


@dataclass(frozen=True)
class JobRun:
    """A run of a job. `job` is None if it cannot be read; `message` says how it failed, `host` where it ended.

    `state` is running, completed, failed, canceled, terminated or timed out.
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
        """The host where it ended, or the only one that may do it; "" if any may."""
        return self.host or (self.job.host if self.job is not None else None) or ""

    @property
    def is_bad(self) -> bool:
        """Whether it has ended, and not well."""
        return self.state not in ("running", "completed")
