"""Events of jobs that tests look at afterwards."""

from __future__ import annotations

from zsnapdb.jobs.events import Silent


class Recorder(Silent):
    """Keeps the lines and warnings."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def tell(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(text)
