"""Measures how long commits wait for a snapshot.

    python3 tests/bench/stall.py [--json FILE] [--rounds N] [--cases CASE…] [--flavour mysql|mariadb]

A probe commits one row as fast as it can beside the ledger's load; the figure is the longest time between two
acknowledged commits around an action (inside/run.py says which). It boots a guest of each flavour, one after the other,
prints a table with ratios, and ends with 0 whenever it could measure: it reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/run.py"
PYTHON = "/opt/venv/bin/python"
FLAVOURS = ("mysql", "mariadb")
ALREADY_LONG = 3.0
LONGEST = 100.0
"""Limits of --long-seconds.

inside/run.py begins the action when a SELECT has run for ALREADY_LONG seconds. LONGEST is a little less than the time
that the connections of the ledger's load wait for an answer.
"""

CASES = {
    "nothing": "nothing",
    "bare_snapshot": "zfs snapshot",
    "lockfree": "zsnapdb, lock none",
    "default": "zsnapdb, default lock",
    "plain_script": "script with global read lock",
    "lockfree_command": "zsnapdb backup, lock none",
    "default_command": "zsnapdb backup, default lock",
    "default_long_select": "long SELECT: zsnapdb, default lock",
    "ftwrl_long_select": "long SELECT: zsnapdb backup, ftwrl",
    "ftwrl_tried_long_select": "long SELECT: zsnapdb, ftwrl waits",
    "plain_script_long_select": "long SELECT: script",
}
RATIOS = {
    "lockfree_vs_bare_snapshot": ("lockfree", "bare_snapshot", "<= 1.2"),
    "default_vs_bare_snapshot": ("default", "bare_snapshot", "<= 1.5"),
    "plain_script_vs_bare_snapshot": ("plain_script", "bare_snapshot", None),
}
EVEN_RATIOS = {
    **{name: (above, below) for name, (above, below, _) in RATIOS.items()},
    "bare_snapshot_vs_nothing": ("bare_snapshot", "nothing"),
}
"""The same in windows of one length, and what a bare snapshot adds to nothing at all."""
ADDED_GOALS = {"median": "<= 2", "max": "<= 10"}
"""Milliseconds that the default may add to a bare snapshot: what a user feels."""
MAX_GOALS = {"default_long_select": "<= 5000", "ftwrl_long_select": "<= 2000"}
"""Milliseconds: lock.deadline, the default one and the one inside/run.py configures."""


@dataclass(frozen=True)
class Line:
    """The result of the rounds of one case.

    Milliseconds, None where a case has no lock of its own or its rounds were refused.
    """

    case: str
    rounds: int
    min_ms: float
    median_ms: float
    max_ms: float
    even_ms: float
    held_ms: float | None
    action_ms: float
    commits_per_second: float
    load_max_ms: float
    outcome: str


@dataclass(frozen=True)
class Measured:
    """The samples of a flavour, and the percentage of time in which a process of the machine waited for a processor.

    A guest is a process of a machine that may have other work. While the guest waits for a processor, commits wait.
    """

    samples: list[dict[str, Any]]
    busy_percent: float | None


@dataclass(frozen=True)
class Figure:
    """One number of the result, with its unit and its goal (None: no goal)."""

    value: float
    unit: str
    goal: str | None = None

    def document(self) -> dict[str, object]:
        """Return the figure as JSON fields."""
        return {"value": round(self.value, 3), "unit": self.unit, **({"goal": self.goal} if self.goal else {})}


def _to_terminal(descriptor: int, data: bytes) -> None:
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.buffer.write(data)
    stream.flush()


def _waited_for_processor() -> float | None:
    """Return for how many seconds since the boot any process of this machine has waited for a processor.

    None if the kernel does not count this time.
    """
    try:
        words = Path("/proc/pressure/cpu").read_text().splitlines()[0].split()
    except OSError:
        return None
    return int(words[-1].removeprefix("total=")) / 1e6


def measure(lab: Lab, flavour: str, options: argparse.Namespace) -> Measured:
    """Return every sample of a flavour, measured in a guest of its own."""
    began = time.monotonic()
    numbers = [str(options.rounds), str(options.long_rounds), str(options.long_seconds), *options.cases]
    with Guest.boot(lab, flavour) as guest:
        print(f"{flavour}: a guest with its server is up after {guest.boot_seconds:.1f} s", flush=True)
        limit = 300 + 120 * options.rounds + (options.long_seconds + 120) * 4 * options.long_rounds
        waited, started = _waited_for_processor(), time.monotonic()
        done = guest.run(
            [PYTHON, INSIDE, *numbers], timeout=limit, env={"PYTHONDONTWRITEBYTECODE": "1"}, sink=_to_terminal
        )
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}")
        now, seconds = _waited_for_processor(), time.monotonic() - started
        samples: list[dict[str, Any]] = json.loads((guest.out / "stall.json").read_text())
    print(f"{flavour}: all in all {time.monotonic() - began:.0f} s", flush=True)
    return Measured(samples, (now - waited) / seconds * 100 if now is not None and waited is not None else None)


def summary(samples: Sequence[Mapping[str, Any]]) -> dict[str, Line]:
    """Return a line for each case that was measured."""
    lines = {}
    for case in CASES:
        chosen = [sample for sample in samples if sample["case"] == case]
        if not chosen:
            continue
        gaps = [sample["gap_ms"] for sample in chosen]
        lock_times = [sample["outcome"]["held_ms"] for sample in chosen if sample["outcome"]["held_ms"] is not None]
        codes = sorted({sample["outcome"]["code"] for sample in chosen})
        lines[case] = Line(
            case,
            len(chosen),
            min(gaps),
            statistics.median(gaps),
            max(gaps),
            statistics.median(sample["even_gap_ms"] for sample in chosen),
            statistics.median(lock_times) if lock_times else None,
            statistics.median(sample["action_ms"] for sample in chosen),
            statistics.median(sample["commits_per_second"] for sample in chosen),
            max(sample["load_wait_ms"] for sample in chosen),
            "ok" if codes == [0] else "exit " + ", ".join(str(code) for code in codes),
        )
    return lines


def figures(flavour: str, lines: Mapping[str, Line]) -> dict[str, Figure]:
    """Return the ratios and the medians behind them, by name.

    Other work on the machine only ever adds, so the minima are the least disturbed.
    """
    values = {}
    for name, (above, below, goal) in RATIOS.items():
        if above in lines and below in lines:
            values[f"{flavour}_{name}"] = Figure(lines[above].median_ms / lines[below].median_ms, "ratio", goal)
            values[f"{flavour}_{name}_of_minima"] = Figure(lines[above].min_ms / lines[below].min_ms, "ratio")
    if "default" in lines and "bare_snapshot" in lines:
        ours, bare = lines["default"], lines["bare_snapshot"]
        for name, added in {"median": ours.median_ms - bare.median_ms, "max": ours.max_ms - bare.max_ms}.items():
            values[f"{flavour}_added_to_bare_snapshot_{name}"] = Figure(added, "ms", ADDED_GOALS[name])
    for name, (above, below) in EVEN_RATIOS.items():
        if above in lines and below in lines:
            values[f"{flavour}_{name}_even_window"] = Figure(lines[above].even_ms / lines[below].even_ms, "ratio")
    for case, line in lines.items():
        values[f"{flavour}_{case}_min_ms"] = Figure(line.min_ms, "ms")
        values[f"{flavour}_{case}_median_ms"] = Figure(line.median_ms, "ms")
        values[f"{flavour}_{case}_even_window_median_ms"] = Figure(line.even_ms, "ms")
        values[f"{flavour}_{case}_max_ms"] = Figure(line.max_ms, "ms", MAX_GOALS.get(case))
        if line.held_ms is not None:
            values[f"{flavour}_{case}_held_ms"] = Figure(line.held_ms, "ms")
    if "nothing" in lines:
        values[f"{flavour}_probe_commits_per_second"] = Figure(lines["nothing"].commits_per_second, "1/s")
    return values


def table(flavour: str, lines: Mapping[str, Line], values: Mapping[str, Figure]) -> str:
    """Return the cases as a table, then the ratios and the goals."""
    columns = ("min ms", "median ms", "max ms", "even ms", "held ms", "action ms", "commits/s", "load max")
    text = [f"{flavour}: longest time between two commits ('even ms': median in windows of the same length)"]
    text.append(f"{'case':<36} {'rounds':>6} " + " ".join(f"{name:>9}" for name in columns) + "  outcome")
    for line in lines.values():
        cells = [f"{value:.1f}" for value in (line.min_ms, line.median_ms, line.max_ms, line.even_ms)]
        cells.append(f"{line.held_ms:.1f}" if line.held_ms is not None else "")
        cells += [f"{value:.0f}" for value in (line.action_ms, line.commits_per_second, line.load_max_ms)]
        text.append(
            f"{CASES[line.case]:<36} {line.rounds:>6} " + " ".join(f"{cell:>9}" for cell in cells) + f"  {line.outcome}"
        )
    text.append("")
    for name, figure in values.items():
        if figure.unit in ("ratio", "%") or figure.goal:
            text.append(
                f"{name:<56} {figure.value:>9.2f} {figure.unit:<6}" + (f" goal {figure.goal}" if figure.goal else "")
            )
    return "\n".join(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tests/bench/stall.py", description="How long commits wait for a snapshot."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples there")
    parser.add_argument("--processors", type=int, choices=(1, 2), default=1, help="those of a guest (default: 1)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of the short cases (default: 7)")
    parser.add_argument(
        "--long-rounds", type=int, default=2, metavar="N", help="rounds beside a long SELECT (default: 2; 0: none)"
    )
    parser.add_argument(
        "--long-seconds", type=float, default=60.0, metavar="S", help="how long that SELECT runs (default: 60)"
    )
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[], metavar="CASE", help="only these short cases")
    return parser


def _options() -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args()
    if options.rounds < 1 or options.long_rounds < 0:
        parser.error("--rounds must be at least 1, --long-rounds at least 0")
    if not ALREADY_LONG < options.long_seconds <= LONGEST:
        parser.error(
            f"--long-seconds must be above {ALREADY_LONG:g}, as the action begins that long after the SELECT, and at"
            f" most {LONGEST:g}"
        )
    return options


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    everything: dict[str, Figure] = {}
    samples: list[dict[str, Any]] = []
    tables = []
    try:
        lab = Lab.ready(Cache.default(), processors=options.processors)
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            measured = measure(lab, flavour, options)
            samples += [{"flavour": flavour, **sample} for sample in measured.samples]
            lines = summary(measured.samples)
            values = figures(flavour, lines)
            if measured.busy_percent is not None:
                values[f"{flavour}_machine_busy"] = Figure(measured.busy_percent, "%")
            everything |= values
            tables.append(table(flavour, lines, values))
    except LabError as error:
        print(f"stall: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stall: interrupted", file=sys.stderr)
        return 130
    print("\n" + "\n\n".join(tables))
    if options.json:
        document = {"figures": {name: figure.document() for name, figure in everything.items()}, "samples": samples}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
