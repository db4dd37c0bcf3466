"""Which limits of objectives cannot be kept, whatever goes well: by how often things are done. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from zsnapdb.base.quantities import format_duration
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.binlog.completeness import least_limit


@dataclass(frozen=True)
class ShortLimit:
    """A limit (`key` in the objectives of an instance) that cannot be kept: the least one in seconds, and why."""

    key: str
    limit: float
    least: int
    why: str

    def __str__(self) -> str:
        return f"{self.key} = {format_duration(self.limit)} cannot be kept: {self.why}; {self.least} s is the least"


def of_archive(objectives: ObjectiveSettings, interval: float) -> Iterator[ShortLimit]:
    """Yield the limits that a server which commits nothing would break, by `binlog.interval` in seconds."""
    least = math.ceil(least_limit(objectives, interval))
    pause = format_duration(interval)
    why = f"the binlogs are looked at every {pause} (binlog.interval), and a warning comes earlier (warn_at)"
    for key, limit in (("archive_lag", objectives.archive_lag), ("rpo", objectives.rpo)):
        if limit is not None and limit < least:
            yield ShortLimit(key, limit, least, why)


def of_schedule(key: str, limit: float | None, job: str, pause: float) -> Iterator[ShortLimit]:
    """Yield the limit of an age if it is shorter than the longest pause between two runs of its job, in seconds."""
    if limit is not None and limit <= pause:
        yield ShortLimit(key, limit, math.ceil(pause) + 1, f"{job} runs up to {format_duration(pause)} apart")
