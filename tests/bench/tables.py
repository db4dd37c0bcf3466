"""Measures what commands ask a server with thousands of tables, against a server with a few.

    python3 tests/bench/tables.py [--json FILE] [--flavour mysql|mariadb] [--tables N]

inside/tables.py has the method. The goals are those for 20,000 tables: the statements of a backup take at most 2 s on
the server, its lock is no longer than with a few tables, and no command asks a statement for each table.
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

INSIDE = "/checkout/tests/bench/inside/tables.py"
LOCK_GOAL = 1.3
STATEMENTS_MORE = 20
"""So many statements more are allowed with many tables: lists in pages, and counters of other work."""


def measure(lab: Lab, flavour: str, tables: int) -> dict[str, Any]:
    """Return what each command asked with few tables and with many, measured in a guest of its own."""
    with Guest.boot(lab, flavour) as guest:
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/checkout"}
        done = guest.run([PYTHON, INSIDE, str(tables)], timeout=7200, env=environment)
        if done.code != 0:
            raise LabError(f"{flavour}: the measurement ended with exit status {done.code}: {done.stderr}")
        print(done.stdout, file=sys.stderr)
        measured: dict[str, Any] = json.loads((guest.out / "tables.json").read_text())
        return measured


def figures(flavour: str, measured: dict[str, Any]) -> dict[str, Figure]:
    """Return the figures of a flavour by name."""
    result: dict[str, Figure] = {}
    for command, few in measured["few"].items():
        many = measured["many"][command]
        name = f"{flavour}_{command.replace(' ', '_')}"
        result[f"{name}_wall_few"] = Figure(few["wall"], "s")
        result[f"{name}_wall_many"] = Figure(many["wall"], "s")
        result[f"{name}_source_few"] = Figure(few["source_seconds"], "s")
        result[f"{name}_source_many"] = Figure(many["source_seconds"], "s", "<= 2" if command == "backup" else None)
        result[f"{name}_statements_few"] = Figure(few["statements"], "statements")
        goal = f"<= {few['statements'] + STATEMENTS_MORE}"
        result[f"{name}_statements_many"] = Figure(many["statements"], "statements", goal)
    locks = [measured[stage]["backup"]["locked_ms"] for stage in ("few", "many")]
    if all(locks):
        result[f"{flavour}_lock_ratio"] = Figure(locks[1] / locks[0], "ratio", f"<= {LOCK_GOAL}")
    return result


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    parser = argparse.ArgumentParser(description="What commands ask a server with many tables.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    parser.add_argument("--tables", type=int, default=20_000, metavar="N", help="how many tables (default: 20,000)")
    options = parser.parse_args()
    everything: dict[str, Figure] = {}
    try:
        lab = Lab.ready()
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            everything |= figures(flavour, measure(lab, flavour, options.tables))
    except LabError as error:
        print(f"tables: {error}", file=sys.stderr)
        return 1
    report(everything, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
