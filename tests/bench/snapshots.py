"""Measures what commands cost where `zsnapdb snapshot` has made thousands of sets, against a host with a few.

    python3 tests/bench/snapshots.py [--json FILE] [--flavour mysql|mariadb] [--sets N] [--clones N] [--backups N]

inside/snapshots.py has the method. A host with N sets has 2 N snapshots. What is compared are the processor seconds of
the programs that a command starts: `zfs list` takes about as long for each snapshot. With --clones it is measured once
more with so many clones besides, and with --backups once more with so many backups of MySQL in the repository besides.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import FLAVOURS, PYTHON, Figure, report
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/snapshots.py"
GOAL = 1.3


def measure(lab: Lab, flavour: str, *counts: int) -> dict[str, Any]:
    """Return what each command used with few sets and with many, measured in a guest of its own."""
    with Guest.boot(lab, flavour) as guest:
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/checkout"}
        done = guest.run([PYTHON, INSIDE, *map(str, counts)], timeout=3600, env=environment)
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}: {done.stderr}")
        measured: dict[str, Any] = json.loads((guest.out / "snapshots.json").read_text())
        return measured


def figures(flavour: str, measured: dict[str, Any]) -> dict[str, Figure]:
    """Return the figures of a flavour by name."""
    result: dict[str, Figure] = {}
    for command, few in measured["few"].items():
        name = f"{flavour}_{command.replace(' ', '_')}"
        result[f"{name}_few"] = Figure(few["all"], "s")
        result[f"{name}_children_few"] = Figure(few["children"], "s")
        if "many" in measured:
            many = measured["many"][command]
            result[f"{name}_many"] = Figure(many["all"], "s")
            result[f"{name}_children_many"] = Figure(many["children"], "s")
            result[f"{name}_ratio"] = Figure(many["all"] / few["all"], "ratio", f"<= {GOAL}")
        for stage in ("clones", "backups"):
            if stage in measured:
                used = measured[stage][command]["all"]
                result[f"{name}_{stage}"] = Figure(used, "s")
                result[f"{name}_{stage}_ratio"] = Figure(used / few["all"], "ratio", f"<= {GOAL}")
    return result


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    parser = argparse.ArgumentParser(description="What commands cost with many snapshots.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    parser.add_argument("--sets", type=int, default=1000, metavar="N", help="how many sets more (default: 1000)")
    parser.add_argument("--clones", type=int, default=0, metavar="N", help="how many clones more (default: none)")
    parser.add_argument("--backups", type=int, default=0, metavar="N", help="how many backups more (default: none)")
    options = parser.parse_args()
    everything: dict[str, Figure] = {}
    try:
        lab = Lab.ready()
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            everything |= figures(flavour, measure(lab, flavour, options.sets, options.clones, options.backups))
    except LabError as error:
        print(f"snapshots: {error}", file=sys.stderr)
        return 1
    report(everything, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
