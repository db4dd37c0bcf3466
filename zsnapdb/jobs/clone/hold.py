"""Holds a clone for a program: beats for it, and resets it for each line `reset`, until the lines end.

A program that resets its clone for each of its tests does not start a command for each. What is asked is one word.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass, field

from zsnapdb.base.errors import UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import lifecycle
from zsnapdb.jobs.clone.catalogue import ready
from zsnapdb.jobs.clone.clone_info import CloneInfo

_LONGEST = 1000
"""Bytes of a line. Each that is known is shorter."""
_RESET = b"reset"
_POLL_SECONDS = 3600.0


@dataclass
class RequestLines:
    """The lines that a descriptor gives, as they come. `has_ended`: there are no more."""

    descriptor: int
    _is_closed: bool = field(init=False, default=False)
    _begun: bytes = field(init=False, default=b"")
    _whole: list[bytes] = field(init=False, default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self._is_closed and not self._whole

    def within(self, seconds: float) -> bytes | None:
        """Return the next line; None if none comes within so many seconds. UsageError if one is too long."""
        if not self._whole and not self._is_closed and select.select([self.descriptor], [], [], seconds)[0]:
            part = os.read(self.descriptor, 4096)
            self._is_closed = not part
            *self._whole, self._begun = (self._begun + part).split(b"\n")
            if max(map(len, (*self._whole, self._begun))) > _LONGEST:
                raise UsageError("a line of stdin is too long", hint="write `reset` on a line of its own")
        return self._whole.pop(0) if self._whole else None


def hold(settings: Settings, host: Host, name: str, descriptor: int, reset: Callable[[CloneInfo], None]) -> CloneInfo:
    """Beat for the clone, and call `reset` with it, as it was at first, for each line that asks for that.

    UsageError if a line asks for something else. The errors of beats are those of `lifecycle.beat_while`. No beats are
    made for a clone of which none are expected.
    """
    info, lines = ready(settings, host, name), RequestLines(descriptor)

    def has_ended(seconds: float) -> bool:
        # One line, then a beat if one is due: what takes many resets at once is no dead holder.
        line = lines.within(seconds)
        if line is not None:
            if line.strip() != _RESET:
                raise UsageError(f"stdin asks for {line[:80]!r}", hint="write `reset` on a line of its own")
            reset(info)
        return lines.has_ended

    if info.lease.heartbeat is not None:
        return lifecycle.beat_until(settings, host, info.id, has_ended)
    while not has_ended(_POLL_SECONDS):
        pass
    return info
