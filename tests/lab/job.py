"""A job of a whole run: its work, its usual duration, and its result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .progress import JobOutput

FIRST = 10_000.0
"""Weight of a job that starts before all others, regardless of its duration."""
_PART = re.compile(r"^(=|_)\1* (\S.*?\S) \1+$", re.MULTILINE)
"""Title line of a section in pytest's output: with `_` for a failed test, with `=` for everything else."""
_SAID = re.compile(r"^(?:E  |\s+\| +\S*(?:Error|Failing)\b)")
"""A line with a reason: an error, or one of several that hypothesis reports."""
_REASON_LINES, _REASON_WIDTH = 8, 200
_SUMMARY = re.compile(r"(\d+) (passed|failed|error|errors|skipped)\b")


@dataclass
class Stage:
    """One job of the run and its result."""

    name: str
    seconds: float = 0.0
    code: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def count(self, output: str) -> None:
        """Add the numbers from pytest's closing line."""
        for line in output.splitlines()[-3:]:
            for number, word in _SUMMARY.findall(line):
                self.counts[word.rstrip("s") if word == "errors" else word] = int(number)


def reasons(output: str) -> list[str]:
    """Return the failures from pytest's output: each test's name with the start and end of its error."""
    parts = _PART.split(output)
    failures = []
    for sign, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        lines = [line for line in text.splitlines() if line.strip()]
        said = [line for line in lines if _SAID.match(line)] or lines
        if sign == "_":
            shown = said if len(said) <= 2 * _REASON_LINES else [*said[:_REASON_LINES], *said[-_REASON_LINES:]]
            failures.append("\n".join([name, *(f"    {line[:_REASON_WIDTH]}" for line in shown)]))
    return failures


@dataclass
class Job:
    """A name, the approximate seconds, and a function that adds to `output` and returns an exit status."""

    name: str
    weight: float
    work: Callable[..., int]
    has_guest: bool = True

    def run(self, output: JobOutput) -> Stage:
        """Run the job, print its whole output at the end, and return its stage."""
        stage = Stage(self.name)
        began = time.monotonic()
        usual = f" (about {self.weight:.0f} s)" if 0 < self.weight < FIRST else ""
        print(f"... {self.name}{usual}", flush=True)
        try:
            stage.code = self.work(output=output)
        except Exception as error:
            stage.code = 1
            output.add(f"\n{error}\n".encode())
        stage.seconds = time.monotonic() - began
        stage.count(output.text)
        stage.reasons = reasons(output.text) if stage.code else []
        print(f"--- {self.name} ({stage.seconds:.0f} s)\n{output.text}", flush=True)
        return stage
