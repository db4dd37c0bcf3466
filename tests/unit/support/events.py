"""A recorder of job events for tests."""

from __future__ import annotations

from zsnapdb.jobs.base.events import Silent


class Recorder(Silent):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def tell(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(text)
