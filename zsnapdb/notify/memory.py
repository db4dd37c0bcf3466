"""The files in which the host remembers what each target was notified of."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from zsnapdb import whole_file
from zsnapdb.config import Settings
from zsnapdb.planning.notifications.occasions import FailedDelivery, TargetMemory

_POLL = 0.05


@dataclass(frozen=True)
class MemoryFile:
    """The memory of one target. A file that cannot be read counts as empty: rather twice than never."""

    file: Path

    @classmethod
    def of(cls, settings: Settings, target: str) -> MemoryFile:
        """Return the memory of the target."""
        return cls(settings.notifications.state / f"{target}.json")

    def read(self) -> TargetMemory:
        """Return what is remembered."""
        try:
            return TargetMemory.model_validate_json(self.file.read_bytes())
        except (OSError, ValidationError):
            return TargetMemory()

    def write(self, memory: TargetMemory) -> None:
        """Replace what is remembered. OSError if the disk refuses."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole_file.replace(self.file, memory.model_dump_json().encode())

    @contextlib.contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """Be the only one who uses the memory, or after `seconds`, or without a folder, one of several."""
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open(self.file.with_suffix(".lock"), "a")  # noqa: SIM115 - it is closed below
        except OSError:
            yield
            return
        with lock:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_POLL)
            yield


def failed_deliveries(settings: Settings) -> tuple[tuple[str, FailedDelivery], ...]:
    """Return the targets whose last notification did not arrive, and why."""
    known = ((name, MemoryFile.of(settings, name).read().failed) for name in sorted(settings.notifications.to))
    return tuple((name, failed) for name, failed in known if failed is not None)
