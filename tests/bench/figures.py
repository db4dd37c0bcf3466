"""What the benchmarks have in common: figures as they are written, and where they run."""

from __future__ import annotations

import sys
from dataclasses import dataclass

PYTHON = "/opt/venv/bin/python"
FLAVOURS = ("mysql", "mariadb")


@dataclass(frozen=True)
class Figure:
    """One number of the result, with its unit and its goal (None: no goal)."""

    value: float
    unit: str
    goal: str | None = None

    def document(self) -> dict[str, object]:
        """Return the figure as JSON fields."""
        return {"value": round(self.value, 3), "unit": self.unit, **({"goal": self.goal} if self.goal else {})}


def to_terminal(descriptor: int, data: bytes) -> None:
    """Write what a guest writes to the same descriptor here."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.buffer.write(data)
    stream.flush()
