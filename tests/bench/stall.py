"""Measures how long commits wait while a backup is made: the whole command, its send included.

    python3 tests/bench/stall.py [--json FILE] [--rounds N] [--flavour mysql|mariadb] [--processors 1|2]

A probe commits one row as fast as it can beside the ledger's load. A wait is the time between two acknowledged commits.
All windows of a round have one length, that of its backup: longer windows have longer waits by chance alone, and what
comes after a backup would thin its waits out. In each round the untouched server has two windows; by what they differ
is noise (stall_statistics.py). A figure that is not clear of the noise is not reported, and neither is one of less than
thirty rounds: the reason is printed instead. The bare snapshot is that of another moment, and how long one takes
depends on what the pool has to write: so it is also reported how much of a lock is neither the server's, which runs the
statements, nor that of the request for snapshots.

It boots a guest of each flavour with one processor and with two, one after the other, and ends with 0 whenever it could
measure.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import FLAVOURS, PYTHON, Figure, to_terminal
from tests.bench.stall_statistics import (
    LEAST_ROUNDS,
    Interval,
    beginning_within,
    difference_of_medians,
    median,
    objection,
    ratio_of_tails,
    tail,
    too_few,
)
from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/run.py"
PROCESSORS = (1, 2)
ALREADY_LONG = 3.0
LONGEST = 100.0
"""Limits of --long-seconds.

inside/run.py begins the action when a SELECT has run for ALREADY_LONG seconds. LONGEST is a little less than the time
that the connections of the ledger's load wait for an answer.
"""

UNTOUCHED, AGAIN = "untouched", "untouched_again"
CASES = {
    UNTOUCHED: "untouched",
    AGAIN: "untouched, a second time",
    "bare": "the bare snapshot",
    "backup": "zsnapdb backup",
    "backup_lockfree": "zsnapdb backup, lock none",
    "busy": "a process that only computes",
    "script": "script with global read lock",
    "backup_long_select": "long SELECT: zsnapdb backup",
    "ftwrl_long_select": "long SELECT: zsnapdb backup, ftwrl",
    "ftwrl_tried_long_select": "long SELECT: zsnapdb, ftwrl waits",
    "script_long_select": "long SELECT: script",
}
DEFAULT = (UNTOUCHED, AGAIN, "bare", "backup")
MORE = ("backup_lockfree", "script", "busy")
CASES_WITH_WINDOWS = (*DEFAULT, *MORE)
LOCK_MARGIN, TAIL_MARGIN = 2.0, 0.2
"""By what a backup may be worse: milliseconds from lock to unlock beyond the bare snapshot; share of the p99.9."""
LOCK_GOAL, TAIL_GOAL = "<= 2", "<= 1.2"
LONG_GOALS = {"backup_long_select": "<= 5000", "ftwrl_long_select": "<= 2000"}
"""Milliseconds: lock.deadline, the default one and the one that inside/actions.py configures."""


@dataclass(frozen=True)
class Rounds:
    """The samples of a case in the order of the rounds, and its waits in windows of the length of that round."""

    case: str
    samples: tuple[Mapping[str, Any], ...]
    waits: tuple[Sequence[float], ...]

    @property
    def longest(self) -> list[float]:
        return [max(waits) for waits in self.waits]

    @property
    def held(self) -> list[float]:
        """Milliseconds from lock to unlock, or of the bare snapshot; empty if the case has neither."""
        return [sample["outcome"]["held_ms"] for sample in self.samples if sample["outcome"]["held_ms"] is not None]

    @property
    def statements(self) -> list[float]:
        """Milliseconds in which the server ran the statements of the lock; empty if unknown."""
        return [outcome["statements_ms"] for outcome in self._timed]

    @property
    def own(self) -> list[float]:
        """Milliseconds from lock to unlock in which neither the server nor ZFS was at work; empty if unknown."""
        return [o["held_ms"] - o["statements_ms"] - o["request_ms"] for o in self._timed]

    @property
    def _timed(self) -> list[Mapping[str, float]]:
        outcomes = [sample["outcome"] for sample in self.samples]
        return [outcome for outcome in outcomes if outcome["request_ms"] and outcome["held_ms"] is not None]


@dataclass(frozen=True)
class Finding:
    """A measured value with its interval and its goal; `refused`: why it must not be reported."""

    name: str
    measured: Interval
    unit: str
    goal: str | None = None
    refused: str | None = None

    def document(self) -> dict[str, object]:
        """Return the figure as JSON fields."""
        ends = {"low": round(self.measured.low, 3), "high": round(self.measured.high, 3)}
        return {**Figure(self.measured.value, self.unit, self.goal).document(), **ends}

    def line(self) -> str:
        """Return the finding as a line of a table."""
        if self.refused is not None:
            return f"{self.name:<44} not reported: {self.refused}"
        value = f"{self.measured.value:9.2f} [{self.measured.low:.2f} .. {self.measured.high:.2f}] {self.unit}"
        return f"{self.name:<44} {value:<40}" + (f" goal {self.goal}" if self.goal else "")


def complete_rounds(samples: Sequence[Mapping[str, Any]]) -> dict[str, Rounds]:
    """Return the rounds of each case that has windows. They are cut to the length of the backup of their round.

    Rounds with a window that is shorter than that are left out.
    """
    lengths = {sample["round"]: float(sample["action_ms"]) for sample in samples if sample["case"] == "backup"}
    short = {
        sample["round"]
        for sample in samples
        if sample["case"] in CASES_WITH_WINDOWS and sample["window_ms"] < lengths.get(sample["round"], 0.0)
    }
    rounds = {}
    for case in CASES_WITH_WINDOWS:
        chosen = [sample for sample in samples if sample["case"] == case and sample["round"] in lengths.keys() - short]
        if chosen:
            chosen.sort(key=lambda sample: int(sample["round"]))
            waits = tuple(beginning_within(s["waits_ms"], s["first_ms"], lengths[s["round"]]) for s in chosen)
            rounds[case] = Rounds(case, tuple(chosen), waits)
    return rounds


def findings(prefix: str, cases: Mapping[str, Rounds]) -> Iterator[Finding]:
    """Yield what the rounds show, with the objection to each that is not clear of the noise."""
    if not cases.keys() >= set(DEFAULT):
        return
    untouched, again, bare = (cases[case] for case in (UNTOUCHED, AGAIN, "bare"))
    rounds = len(untouched.samples)
    tail_noise = ratio_of_tails(again.waits, untouched.waits)
    longest_noise = difference_of_medians(again.longest, untouched.longest)
    bare_median = median(bare.held)
    bare_noise = Interval(bare_median.low - bare_median.value, 0.0, bare_median.high - bare_median.value)
    for case, measured in cases.items():
        if case in (UNTOUCHED, AGAIN):
            continue
        ratio = ratio_of_tails(measured.waits, untouched.waits)
        reason = objection(ratio, tail_noise, neutral=1.0, margin=TAIL_MARGIN, rounds=rounds)
        goal = TAIL_GOAL if case == "backup" else None
        yield Finding(f"{prefix}_{case}_p999_vs_untouched", ratio, "ratio", goal, reason)
        added = difference_of_medians(measured.longest, untouched.longest)
        reason = objection(added, longest_noise, neutral=0.0, margin=0.0, rounds=rounds)
        yield Finding(f"{prefix}_{case}_longest_wait_added", added, "ms", None, reason)
        if case != "bare" and measured.held:
            beyond = difference_of_medians(measured.held, bare.held)
            reason = objection(beyond, bare_noise, neutral=0.0, margin=LOCK_MARGIN, rounds=rounds)
            goal = LOCK_GOAL if case == "backup" else None
            yield Finding(f"{prefix}_{case}_lock_to_unlock_beyond_bare", beyond, "ms", goal, reason)
        if measured.own:
            goal = LOCK_GOAL if case == "backup" else None
            yield Finding(f"{prefix}_{case}_lock_statements", median(measured.statements), "ms", None, too_few(rounds))
            yield Finding(f"{prefix}_{case}_lock_to_unlock_own", median(measured.own), "ms", goal, too_few(rounds))
    if "busy" in cases:
        ratio = ratio_of_tails(cases["backup"].waits, cases["busy"].waits)
        yield Finding(f"{prefix}_backup_p999_vs_busy", ratio, "ratio", None, too_few(rounds))
    yield Finding(f"{prefix}_noise_of_p999", tail_noise, "ratio", None, too_few(rounds))
    yield Finding(f"{prefix}_noise_of_longest_wait", longest_noise, "ms", None, too_few(rounds))


def long_findings(prefix: str, samples: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the longest wait of each case beside a long SELECT. The effect is of seconds: it needs no thirty rounds."""
    for case in CASES:
        longest = [max(sample["waits_ms"]) for sample in samples if sample["case"] == case]
        if longest and case not in CASES_WITH_WINDOWS:
            value = Interval(min(longest), max(longest), max(longest))
            yield Finding(f"{prefix}_{case}_longest_wait", value, "ms", LONG_GOALS.get(case))


def table(prefix: str, cases: Mapping[str, Rounds], shown: Sequence[Finding], dropped: int) -> str:
    """Return the cases as a table, then the findings."""
    columns = ("commits", "p99.9 ms", "longest ms", "most ms", "held ms", "action ms")
    text = [f"{prefix}: waits between two commits, in windows as long as the backup of the round"]
    if dropped:
        text.append(f"{dropped} rounds are left out: the backup took longer than another window (see --window)")
    text.append(f"{'case':<36} {'rounds':>6} " + " ".join(f"{name:>10}" for name in columns))
    for case, rounds in cases.items():
        commits = sum(len(waits) for waits in rounds.waits)
        longest, actions = rounds.longest, [sample["action_ms"] for sample in rounds.samples]
        cells = [f"{commits}", f"{tail(rounds.waits).value:.1f}", f"{median(longest).value:.1f}", f"{max(longest):.1f}"]
        cells += [f"{median(rounds.held).value:.1f}" if rounds.held else "", f"{median(actions).value:.0f}"]
        text.append(f"{CASES[case]:<36} {len(rounds.samples):>6} " + " ".join(f"{cell:>10}" for cell in cells))
    return "\n".join([*text, "", *(finding.line() for finding in shown)])


def _waited_for_processor() -> float | None:
    """Return for how many seconds since the boot any process of this machine has waited for a processor.

    None if the kernel does not count this time.
    """
    try:
        words = Path("/proc/pressure/cpu").read_text().splitlines()[0].split()
    except OSError:
        return None
    return int(words[-1].removeprefix("total=")) / 1e6


@dataclass(frozen=True)
class Measured:
    """The samples of a guest, and the percentage of time in which a process of the machine waited for a processor.

    A guest is a process of a machine that may have other work. While the guest waits for a processor, commits wait.
    """

    samples: list[dict[str, Any]]
    busy_percent: float | None


def measure(lab: Lab, flavour: str, options: argparse.Namespace) -> Measured:
    """Return every sample of a flavour, measured in a guest of its own."""
    began = time.monotonic()
    cases = [*DEFAULT, *(case for case in options.more if case not in DEFAULT)]
    words = [str(options.rounds), str(options.long_rounds), str(options.long_seconds), str(options.window), *cases]
    with Guest.boot(lab, flavour) as guest:
        print(f"{flavour}: a guest with its server is up after {guest.boot_seconds:.1f} s", flush=True)
        # In life the store is another machine: the work that it has in the guest is not the backup's.
        guest.run(["sh", "-c", "renice -n 19 -p $(pidof versitygw)"]).check()
        limit = 600 + 120 * len(cases) * options.rounds + (options.long_seconds + 120) * 4 * options.long_rounds
        waited, started = _waited_for_processor(), time.monotonic()
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/checkout"}
        done = guest.run([PYTHON, INSIDE, *words], timeout=limit, env=environment, sink=to_terminal)
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}")
        now, seconds = _waited_for_processor(), time.monotonic() - started
        samples: list[dict[str, Any]] = json.loads((guest.out / "stall.json").read_text())
    print(f"{flavour}: all in all {time.monotonic() - began:.0f} s", flush=True)
    return Measured(samples, (now - waited) / seconds * 100 if now is not None and waited is not None else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tests/bench/stall.py", description="How long commits wait while a backup is made."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples there")
    parser.add_argument("--processors", type=int, choices=PROCESSORS, help="those of a guest (default: one, then two)")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=LEAST_ROUNDS,
        metavar="N",
        help=f"rounds (default: {LEAST_ROUNDS}; of less nothing is reported)",
    )
    parser.add_argument(
        "--window",
        type=float,
        default=0.0,
        metavar="S",
        help="least seconds of a window before it is cut (default: three times a backup)",
    )
    parser.add_argument(
        "--more", nargs="+", choices=MORE, default=[], metavar="CASE", help=f"measure {', '.join(MORE)}"
    )
    parser.add_argument(
        "--long-rounds", type=int, default=0, metavar="N", help="rounds beside a long SELECT (default: none)"
    )
    parser.add_argument(
        "--long-seconds", type=float, default=60.0, metavar="S", help="how long that SELECT runs (default: 60)"
    )
    return parser


def _options() -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args()
    if options.rounds < 1 or options.long_rounds < 0 or options.window < 0:
        parser.error("--rounds must be at least 1, --long-rounds and --window at least 0")
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
    everything: list[Finding] = []
    figures: dict[str, dict[str, object]] = {}
    samples: list[dict[str, Any]] = []
    tables = []
    try:
        for processors in [options.processors] if options.processors else PROCESSORS:
            lab = Lab.ready(Cache.default(), processors=processors)
            for flavour in [options.flavour] if options.flavour else FLAVOURS:
                measured = measure(lab, flavour, options)
                prefix = f"{flavour}_{processors}cpu"
                samples += [{"guest": prefix, **sample} for sample in measured.samples]
                cases = complete_rounds(measured.samples)
                shown = [*findings(prefix, cases), *long_findings(prefix, measured.samples)]
                everything += shown
                if measured.busy_percent is not None:
                    figures[f"{prefix}_machine_busy"] = Figure(measured.busy_percent, "%").document()
                kept = len(cases[UNTOUCHED].samples) if UNTOUCHED in cases else 0
                tables.append(table(prefix, cases, shown, options.rounds - kept))
    except LabError as error:
        print(f"stall: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stall: interrupted", file=sys.stderr)
        return 130
    print("\n" + "\n\n".join(tables))
    figures |= {finding.name: finding.document() for finding in everything if finding.refused is None}
    if options.json:
        refused = {finding.name: finding.refused for finding in everything if finding.refused is not None}
        document = {"figures": figures, "refused": refused, "samples": samples}
        options.json.write_text(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
