"""The events of a running job: lines, warnings and progress. The caller decides where they are shown."""

from __future__ import annotations

from typing import Protocol

from zsnapdb.base.domain_types import Progress


class Events(Protocol):
    """Receiver of the events of a running job. Several threads may call the methods, which raise nothing."""

    def tell(self, text: str) -> None:
        """Receive one line about the present action, or why it takes longer."""

    def warn(self, text: str) -> None:
        """Receive one line that a person should look into. The job continues."""

    def progress(self, progress: Progress) -> None:
        """Receive the progress of a step. Called often."""


class Silent:
    """A receiver that ignores all events."""

    def tell(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


SILENT: Events = Silent()


class KeptWarnings:
    """A receiver that passes all events on, and keeps the warnings for the result of the job."""

    def __init__(self, inner: Events) -> None:
        self._inner = inner
        self.warnings: list[str] = []

    def tell(self, text: str) -> None:
        self._inner.tell(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self._inner.warn(text)

    def progress(self, progress: Progress) -> None:
        self._inner.progress(progress)
