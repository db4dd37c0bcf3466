"""Counts the programs that each command starts, the repeated ones, and the transaction groups that it forces.

    python3 tests/bench/programs.py [--json FILE] [--flavour mysql|mariadb] [--show COMMAND]

inside/programs.py has the method. A program costs some milliseconds on a machine and five times as much in a guest of
the lab. `--show` prints the programs of one command in their order.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import FLAVOURS, PYTHON, Figure
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/programs.py"
GOALS = {
    "backup of nothing": 15,
    "snapshot": 8,
    "clone create": 15,
    "clone reset": 10,
    "clone destroy": 10,
    "query": 30,
    "drill": 35,
    "restore": 18,
    "doctor": 15,
}
GROUP_GOALS = {"backup of nothing": 3}
"""How many transaction groups of the pool a command may force. In each the commits of a server wait for the disks."""


def measure(lab: Lab, flavour: str) -> dict[str, Any]:
    """Return what each command started, measured in a guest of its own."""
    with Guest.boot(lab, flavour) as guest:
        done = guest.run(
            [PYTHON, INSIDE], timeout=1800, env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/checkout"}
        )
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}: {done.stderr}")
        measured: dict[str, Any] = json.loads((guest.out / "programs.json").read_text())
        return measured


def figures(flavour: str, measured: dict[str, Any]) -> dict[str, Figure]:
    """Return the figures of a flavour by name."""
    result: dict[str, Figure] = {}
    for command, run in measured.items():
        name, argvs = f"{flavour}_{command.replace(' ', '_')}", [tuple(one["argv"]) for one in run["programs"]]
        goal = f"<= {GOALS[command]}" if command in GOALS else ""
        result[f"{name}_programs"] = Figure(len(argvs), "count", goal)
        result[f"{name}_repeated"] = Figure(len(argvs) - len(Counter(argvs)), "count")
        groups_goal = f"<= {GROUP_GOALS[command]}" if command in GROUP_GOALS else ""
        result[f"{name}_groups"] = Figure(run["groups"], "count", groups_goal)
        result[f"{name}_wall"] = Figure(run["wall"], "s")
        result[f"{name}_processor"] = Figure(run["processor"], "s")
    return result


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    parser = argparse.ArgumentParser(description="How many programs a command starts.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all programs there")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    parser.add_argument("--show", metavar="COMMAND", help="print the programs of this command")
    options = parser.parse_args()
    everything: dict[str, Figure] = {}
    runs: dict[str, Any] = {}
    try:
        lab = Lab.ready()
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            runs[flavour] = measure(lab, flavour)
            everything |= figures(flavour, runs[flavour])
    except LabError as error:
        print(f"programs: {error}", file=sys.stderr)
        return 1
    for name, figure in everything.items():
        print(f"{name:<44} {figure.value:>8.2f} {figure.unit:<6}" + (f" goal {figure.goal}" if figure.goal else ""))
    if options.show:
        for flavour, run in runs.items():
            for one in run[options.show]["programs"]:
                print(f"{flavour} {one['at'] - run[options.show]['began']:7.2f} {' '.join(one['argv'])}")
    if options.json:
        document = {"figures": {name: figure.document() for name, figure in everything.items()}, "runs": runs}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
