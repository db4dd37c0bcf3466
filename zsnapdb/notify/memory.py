"""The files in which the host remembers what each target was notified of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from zsnapdb.base import private_lock, whole_file
from zsnapdb.config.settings import Settings
from zsnapdb.planning.notifications.occasions import FailedDelivery, TargetMemory


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
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(private_lock.locked(self.file.with_suffix(".lock"), seconds))
            yield


def failed_deliveries(settings: Settings) -> tuple[tuple[str, FailedDelivery], ...]:
    """Return the targets whose last notification did not arrive, and why."""
    known = ((name, MemoryFile.of(settings, name).read().failed) for name in sorted(settings.notifications.to))
    return tuple((name, failed) for name, failed in known if failed is not None)
