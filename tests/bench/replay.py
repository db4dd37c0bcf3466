"""Measures how fast binlogs are replayed.

    python3 tests/bench/replay.py [--json FILE] [--mebibytes N] [--flavour mysql|mariadb]

The binlogs of a load on several schemas are replayed by a restore (relay logs and the parallel applier; the whole step:
fetching, starting, applying, checking, shutting down) and by `mysqlbinlog | mysql` (the pipe alone, the server already
up), with the same options and with the server's own durability. It boots a guest of each flavour, one after the other,
prints a table, and ends with 0 only if all came out alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

PYTHON = "/opt/venv/bin/python"
INSIDE = "/checkout/tests/bench/inside/replay.py"
FLAVOURS = ("mysql", "mariadb")
GOAL = 1.5


def measure(lab: Lab, flavour: str, mebibytes: int) -> dict[str, Any]:
    """Return what was measured in a guest of the flavour."""
    with Guest.boot(lab, flavour) as guest:
        env = {"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
        guest.run([PYTHON, INSIDE, str(mebibytes)], cwd="/checkout", env=env, timeout=3600).check()
        results: dict[str, Any] = json.loads((guest.out / "bench.json").read_text())
        return results


def lines(flavour: str, results: dict[str, Any]) -> list[str]:
    """Return the table of a flavour."""
    count, step = results["transactions"], results["replay_step_seconds"]
    rows = [f"{flavour}: {count} transactions, {results['bytes'] / 2**20:.0f} MiB of binlogs"]
    for name, label in (
        ("replay_step_seconds", "zsnapdb, the whole step"),
        ("pipe_same_options_seconds", "pipe alone, same options"),
        ("pipe_seconds", "pipe alone, default durability"),
    ):
        seconds = results[name]
        ratio = "" if name == "replay_step_seconds" else f"  {seconds / step:5.2f} x"
        rows.append(f"  {label:32s} {seconds:8.1f} s {count / seconds:9.0f} transactions/s{ratio}")
    rows.append(f"  goal: {GOAL} x; came out otherwise: {', '.join(results['wrong']) or 'none'}")
    return rows


def main() -> int:
    """Measure, print, write; 0 if it could measure and all came out alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--processors", type=int, choices=(1, 2), default=1, help="those of a guest (default: 1)")
    parser.add_argument("--mebibytes", type=int, default=220, metavar="N", help="how much of binlogs (default: 220)")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    options = parser.parse_args()
    everything = {}
    try:
        lab = Lab.ready(Cache.default(), processors=options.processors)
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            everything[flavour] = measure(lab, flavour, options.mebibytes)
            print("\n".join(lines(flavour, everything[flavour])), flush=True)
    except LabError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 1
    if options.json:
        figures = {}
        for flavour, results in everything.items():
            for name, seconds in results.items():
                if name.endswith("_seconds"):
                    figures[f"{flavour}_{name}"] = {"value": round(seconds, 2), "unit": "s"}
            ratio = results["pipe_same_options_seconds"] / results["replay_step_seconds"]
            figures[f"{flavour}_replay_speed_vs_pipe"] = {"value": round(ratio, 2), "unit": "x", "goal": f">= {GOAL}"}
            rate = results["transactions"] / results["replay_step_seconds"]
            figures[f"{flavour}_transactions_per_second"] = {"value": round(rate, 1), "unit": "1/s"}
        options.json.write_text(json.dumps({"figures": figures, "samples": everything}, indent=1) + "\n")
    return 1 if any(results["wrong"] for results in everything.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
