"""What a job tells the person who waits: lines, warnings and progress. Where they go is decided outside."""

from __future__ import annotations

from typing import Protocol

from zsnapdb.model import Progress


class Events(Protocol):
    """Takes what happens while a job runs. Its methods may be called from several threads, and raise nothing."""

    def tell(self, text: str) -> None:
        """Take one line: what is going on, and why it takes longer."""

    def warn(self, text: str) -> None:
        """Take one line that somebody should look into; the job goes on."""

    def progress(self, progress: Progress) -> None:
        """Take how far a step has come. Called often."""


class Silent:
    """Takes everything and shows nothing."""

    def tell(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


SILENT: Events = Silent()


class KeptWarnings:
    """Passes everything on, and keeps the warnings for the job's result."""

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
