"""What the benchmarks have in common: figures as they are written, and where they run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def report(everything: Mapping[str, Figure], file: Path | None) -> None:
    """Print the figures, and write them to the file if there is one."""
    for name, figure in everything.items():
        print(f"{name:<44} {figure.value:>9.3f} {figure.unit:<10}" + (f" goal {figure.goal}" if figure.goal else ""))
    if file is not None:
        document = {"figures": {name: figure.document() for name, figure in everything.items()}}
        file.write_text(json.dumps(document, indent=1) + "\n")


def to_terminal(descriptor: int, data: bytes) -> None:
    """Write what a guest writes to the same descriptor here."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.buffer.write(data)
    stream.flush()
