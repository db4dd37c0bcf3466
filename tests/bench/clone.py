"""Measures the time until a clone answers, phase by phase, beside a bare server on a bare copy of the same data.

    python3 tests/bench/clone.py [--json FILE] [--sizes 0.1,1] [--rounds N] [--clones N] [--flavour mysql|mariadb]

inside/clone.py has the method. The benchmark boots a guest of
each flavour, one after the other, prints the figures and ends with 0 whenever it could measure: it reports, it does not
judge.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import FLAVOURS, PYTHON, Figure, to_terminal
from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/clone.py"
MEMORY_MIB = 6144
PHASES = ("clone", "identity", "start")


def measure(lab: Lab, flavour: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every sample of a flavour, measured in a guest of its own."""
    with Guest.boot(lab, flavour, memory_mib=MEMORY_MIB) as guest:
        argv = [PYTHON, INSIDE, options.sizes, *map(str, (options.rounds, options.clones, options.pool))]
        done = guest.run(argv, timeout=options.timeout, env={"PYTHONDONTWRITEBYTECODE": "1"}, sink=to_terminal)
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}")
        samples: list[dict[str, Any]] = json.loads((guest.out / "clone.json").read_text())
        return samples


def _median(samples: Sequence[Mapping[str, Any]], size: str, case: str, *names: str) -> float:
    chosen = [sample for sample in samples if sample["case"] == case and sample["size"] == size]
    return statistics.median(sum(float(sample[name]) for name in names) for sample in chosen)


def figures(flavour: str, samples: Sequence[Mapping[str, Any]], sizes: Sequence[str]) -> dict[str, Figure]:
    """Return the figures of a flavour by name: medians over the rounds.

    The overhead is what zsnapdb takes beyond a bare server's start on the same kind of copy: after a clean shutdown
    (prepared), or in need of recovery (plain).
    """
    result: dict[str, Figure] = {}
    overheads = []
    for size in sizes:
        name = f"{flavour}_{size}gib"
        for case in ("plain", "prepared"):
            for phase in PHASES:
                result[f"{name}_{case}_{phase}"] = Figure(_median(samples, size, case, phase), "s")
            result[f"{name}_{case}_command"] = Figure(_median(samples, size, case, "wall"), "s")
            result[f"{name}_{case}_own_bytes"] = Figure(_median(samples, size, case, "own_bytes"), "B")
        for case in ("bare_crash", "bare_clean"):
            result[f"{name}_{case}_start"] = Figure(_median(samples, size, case, "start"), "s")
        hand = _median(samples, size, "bare_clean", "clone", "start")
        result[f"{name}_create_over_by_hand"] = Figure(
            _median(samples, size, "prepared", *PHASES) / hand, "ratio", "<= 1.5"
        )
        result[f"{name}_destroy"] = Figure(_median(samples, size, "prepared", "destroy"), "s", "<= 1.5")
        result[f"{name}_recovery"] = Figure(
            _median(samples, size, "plain", "start") - _median(samples, size, "prepared", "start"), "s"
        )
        result[f"{name}_ready"] = Figure(_median(samples, size, "prepared", "start"), "s")
        overheads.append(_median(samples, size, "prepared", *PHASES) - _median(samples, size, "bare_clean", "start"))
        result[f"{name}_overhead"] = Figure(overheads[-1], "s", "<= 0.5")
        result[f"{name}_overhead_with_recovery"] = Figure(
            _median(samples, size, "plain", *PHASES) - _median(samples, size, "bare_crash", "start"), "s", "<= 0.5"
        )
        recovered = sum(
            sample["recovered"] for sample in samples if sample["case"] == "prepared" and sample["size"] == size
        )
        result[f"{name}_prepared_recoveries"] = Figure(recovered, "count", "<= 0")
    if len(overheads) > 1:
        result[f"{flavour}_overhead_largest_vs_smallest"] = Figure(overheads[-1] / overheads[0], "ratio", "<= 1.1")
    result |= _of_pool(flavour, samples)
    for sample in samples:
        if sample["case"] == "at_once":
            result[f"{flavour}_{sample['of']}_at_once"] = Figure(sample["seconds"], "s")
            result[f"{flavour}_{sample['of']}_at_once_right"] = Figure(sample["right"], "count", f">= {sample['of']}")
            result[f"{flavour}_commit_gap_nothing"] = Figure(sample["gap_nothing"] * 1000, "ms")
            result[f"{flavour}_commit_gap_snapshot"] = Figure(sample["gap_snapshot"] * 1000, "ms")
            result[f"{flavour}_commit_gap_bare_clones"] = Figure(sample["gap_bare"] * 1000, "ms")
            result[f"{flavour}_commit_gap_during_{sample['of']}"] = Figure(
                sample["gap"] * 1000, "ms", f"<= {sample['gap_bare'] * 1000 + 50:.1f}"
            )
    return result


def _of_pool(flavour: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Return medians and the 95th percentiles of hand-outs of the pool, and of resets by rows and by a swap.

    `own` is without the start of the command, `total` with it and to the answer of the first query.
    """
    result: dict[str, Figure] = {}
    for case, goal in (("pool", "<= 0.3"), ("undo_20", "<= 0.1"), ("undo_100", "<= 0.3"), ("swap", "<= 0.3")):
        chosen = [sample for sample in samples if sample["case"] == case]
        for name in ("own", "wall", "total") if chosen else ():
            values = sorted(float(sample[name]) for sample in chosen if name in sample)
            if values:
                high = values[min(len(values) - 1, round(0.95 * len(values)))]
                result[f"{flavour}_{case}_{name}_median"] = Figure(statistics.median(values), "s")
                result[f"{flavour}_{case}_{name}_p95"] = Figure(high, "s", goal if name == "own" else None)
        if chosen:
            right = sum(bool(sample["right"]) for sample in chosen)
            result[f"{flavour}_{case}_right"] = Figure(right, "count", f">= {len(chosen)}")
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tests/bench/clone.py", description="How long a clone takes to its first answer."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples there")
    parser.add_argument("--processors", type=int, choices=(1, 2), default=1, help="those of a guest (default: 1)")
    parser.add_argument("--sizes", default="0.1,1", metavar="GIB,…", help="how much data, growing (default: 0.1,1)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each case (default: 3)")
    parser.add_argument("--clones", type=int, default=10, metavar="N", help="clones at once (default: 10; 0: none)")
    parser.add_argument(
        "--pool",
        type=int,
        default=10,
        metavar="N",
        help="clones out of a pool, resets by rows and by a swap (default: 10; 0: none)",
    )
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    return parser


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    options = _parser().parse_args()
    everything: dict[str, Figure] = {}
    samples: list[dict[str, Any]] = []
    try:
        lab = Lab.ready(Cache.default(), processors=options.processors)
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            measured = measure(lab, flavour, options)
            samples += [{"flavour": flavour, **sample} for sample in measured]
            everything |= figures(flavour, measured, options.sizes.split(","))
    except LabError as error:
        print(f"clone: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for name, figure in everything.items():
        print(f"{name:<56} {figure.value:>14.2f} {figure.unit:<6}" + (f" goal {figure.goal}" if figure.goal else ""))
    if options.json:
        document = {"figures": {name: figure.document() for name, figure in everything.items()}, "samples": samples}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
