"""Which jobs of a fleet are meant, by filters as they are typed. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import UsageError
from zsnapdb.planning.fleet.messages import FleetJob

_KEYS = ("instance", "host", "verb", "bucket")


@dataclass(frozen=True)
class JobFilter:
    """A filter such as instance=shop*: a key and a pattern as a shell has them."""

    key: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> JobFilter:
        """Return the filter. UsageError if the text is none."""
        key, separator, pattern = text.partition("=")
        if key not in _KEYS or not separator or not pattern:
            raise UsageError(
                f"--where {text!r} is no filter", hint=f"write KEY=PATTERN; a key is one of {', '.join(_KEYS)}"
            )
        return cls(key, pattern)

    def matches(self, job: FleetJob, home: str) -> bool:
        """Whether the job is meant. `home` is the host of its instance ("": not known)."""
        value = {"instance": job.instance, "host": job.host or home, "verb": job.verb.value, "bucket": job.bucket or ""}
        return fnmatch.fnmatchcase(value[self.key], self.pattern)


def is_meant(filters: Sequence[JobFilter], job: FleetJob, home: str) -> bool:
    """Whether every filter matches the job."""
    return all(one.matches(job, home) for one in filters)
