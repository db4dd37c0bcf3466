"""Measures how long a server needs to be back before an accident, in place: zsnapdb beside a DBA's script.

    python3 tests/bench/rewind.py [--json FILE] [--mebibytes N …] [--transactions N …] [--flavour mysql|mariadb]

inside/rewind.py has the method. It boots a guest for each size and flavour, prints a table, and ends with 0 whenever it
could measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

PYTHON = "/opt/venv/bin/python"
INSIDE = "/checkout/tests/bench/inside/rewind.py"
FLAVOURS = ("mysql", "mariadb")
MEMORY_MIB = 6144


def measure(lab: Lab, flavour: str, mebibytes: int, transactions: Sequence[int]) -> dict[str, Any]:
    """Return what was measured in a guest of the flavour."""
    with Guest.boot(lab, flavour, memory_mib=MEMORY_MIB) as guest:
        env = {"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [PYTHON, INSIDE, str(mebibytes), *(str(number) for number in transactions)]
        guest.run(argv, cwd="/checkout", env=env, timeout=7200).check()
        results: dict[str, Any] = json.loads((guest.out / "bench.json").read_text())
        return results


def figures(name: str, samples: Mapping[str, Any], transactions: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the figures of one guest by name."""
    start = samples["start"]
    result: dict[str, dict[str, Any]] = {f"{name}_own_start": {"value": round(start, 2), "unit": "s"}}
    for number in transactions:
        ours, script = samples[f"zsnapdb_{number}"], samples[f"script_{number}"]
        for part in ("whole", "outage"):
            result[f"{name}_{number}_{part}"] = {"value": round(ours[part], 2), "unit": "s"}
            result[f"{name}_{number}_script_{part}"] = {"value": round(script[part], 2), "unit": "s"}
        if number == 0:
            more = round(ours["outage"] - start, 2)
            result[f"{name}_outage_beyond_start"] = {"value": more, "unit": "s", "goal": "<= 2"}
        else:
            replay = round(script["whole"] / ours["whole"], 2)
            result[f"{name}_{number}_script_to_ours"] = {"value": replay, "unit": "ratio", "goal": ">= 1.5"}
    return result


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--processors", type=int, choices=(1, 2), default=1, help="those of a guest (default: 1)")
    parser.add_argument("--mebibytes", type=int, nargs="+", default=[1024, 4096], metavar="N")
    parser.add_argument("--transactions", type=int, nargs="+", default=[0, 1000, 20000], metavar="N")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    options = parser.parse_args()
    measured: dict[str, dict[str, Any]] = {}
    wholes: dict[str, list[float]] = {}
    try:
        lab = Lab.ready(Cache.default(), processors=options.processors)
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            for mebibytes in options.mebibytes:
                samples = measure(lab, flavour, mebibytes, options.transactions)
                of_guest = figures(f"{flavour}_{mebibytes}", samples, options.transactions)
                measured.update(of_guest)
                print(
                    "\n".join(f"{key:40s} {figure['value']:8.2f} {figure['unit']}" for key, figure in of_guest.items())
                )
                wholes.setdefault(flavour, []).append(samples[f"zsnapdb_{options.transactions[0]}"]["whole"])
    except LabError as error:
        print(f"rewind: {error}", file=sys.stderr)
        return 1
    for flavour, seconds in wholes.items():
        if len(seconds) > 1:
            ratio = round(seconds[-1] / seconds[0], 2)
            measured[f"{flavour}_largest_to_smallest"] = {"value": ratio, "unit": "ratio", "goal": "<= 1.2"}
            print(f"{flavour}_largest_to_smallest {ratio}")
    if options.json:
        options.json.write_text(json.dumps({"figures": measured}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
