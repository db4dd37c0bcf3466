"""Files that store the last notifications of each target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from zsnapdb.base import files
from zsnapdb.config.settings import Settings
from zsnapdb.planning.health.notification_events import FailedDelivery, TargetMemory


@dataclass(frozen=True)
class MemoryFile:
    """The stored state of one target.

    An unreadable file is treated as empty, because a repeated notification is better than a missing one.
    """

    file: Path

    @classmethod
    def of(cls, settings: Settings, target: str) -> MemoryFile:
        return cls(settings.notifications.state / f"{target}.json")

    def read(self) -> TargetMemory:
        try:
            return TargetMemory.model_validate_json(self.file.read_bytes())
        except (OSError, ValidationError):
            return TargetMemory()

    def write(self, memory: TargetMemory) -> None:
        """Replace the stored state. Raise OSError if it cannot be written."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(self.file, memory.model_dump_json().encode())

    @contextlib.contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """Lock the state exclusively for a `with` block. After `seconds`, or without a folder, continue unlocked."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(files.locked_file(self.file.with_suffix(".lock"), seconds))
            yield


def failed_deliveries(settings: Settings) -> tuple[tuple[str, FailedDelivery], ...]:
    """Return the targets that did not get their last notification, and the reasons."""
    known = ((name, MemoryFile.of(settings, name).read().failed) for name in sorted(settings.notifications.to))
    return tuple((name, failed) for name, failed in known if failed is not None)
