"""Measures the 200 tests of the sample project on four workers: resets of clones beside truncated and refilled tables.

    python3 tests/bench/sample_project.py [--json FILE] [--sizes 1,1000] [--rounds N] [--flavour mysql|mariadb]

Both ways run on clones of the same set, one per worker; the tables that are truncated have 1 MiB at any size, the rest
is in a table that no test writes. The benchmark boots a guest with two processors of each flavour, one after the other.
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

INSIDE = "/checkout/tests/bench/inside/sample_project.py"
MEMORY_MIB = 6144


def measure(lab: Lab, flavour: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every run of a flavour, measured in a guest of its own."""
    with Guest.boot(lab, flavour, memory_mib=MEMORY_MIB) as guest:
        argv = [PYTHON, INSIDE, options.sizes, str(options.rounds)]
        done = guest.run(
            argv,
            timeout=options.timeout,
            env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/checkout"},
            sink=to_terminal,
        )
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}")
        samples: list[dict[str, Any]] = json.loads((guest.out / "sample_project.json").read_text())
        return samples


def figures(flavour: str, samples: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Figure]:
    """Return the medians over the rounds, and the ratios: to truncation at the least size, and to that size."""
    result: dict[str, Figure] = {}

    def median(size: int, way: str, name: str) -> float:
        return statistics.median(float(s[name]) for s in samples if (s["size"], s["way"]) == (size, way))

    for size in sizes:
        for way in ("reset", "truncate"):
            result[f"{flavour}_{size}mib_{way}_wall"] = Figure(median(size, way, "wall"), "s")
            result[f"{flavour}_{size}mib_{way}_test"] = Figure(median(size, way, "median"), "s")
        ratio = median(size, "reset", "wall") / median(size, "truncate", "wall")
        result[f"{flavour}_{size}mib_reset_vs_truncate"] = Figure(ratio, "ratio", "<= 1.2")
    if len(sizes) > 1:
        ratio = median(sizes[-1], "reset", "wall") / median(sizes[0], "reset", "wall")
        result[f"{flavour}_reset_largest_vs_smallest"] = Figure(ratio, "ratio", "<= 1.2")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sizes", default="1,1000", help="MiB")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--flavour", choices=FLAVOURS, action="append")
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=7200.0)
    options = parser.parse_args()
    lab, sizes = (
        Lab.ready(Cache.default(), processors=options.processors),
        [int(size) for size in options.sizes.split(",")],
    )
    made: dict[str, Figure] = {}
    for flavour in options.flavour or FLAVOURS:
        made |= figures(flavour, measure(lab, flavour, options), sizes)
    for name, figure in made.items():
        print(f"{name:<44} {figure.value:10.3f} {figure.unit:<6} {figure.goal or ''}")
    if options.json is not None:
        written = {"figures": {name: figure.document() for name, figure in made.items()}}
        options.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
