"""Measures a full backup beside other tools for ZFS and S3.

    python3 tests/bench/peers.py [--json FILE] [--mebibytes N] [--rounds N] [--zfsbackup PROGRAM]

zfs_uploader (PyPI) and zfsbackup-go, each as it comes, in one guest, of the same datasets of a MySQL server
(inside/peers.py says how). zfsbackup-go is built by `go install`, or given as a program; without both, its
figures are left out. Prints a table and ratios; it reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import Figure
from tests.bench.tools import peers
from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/peers.py"
UNITS = {"wall": "s", "cpu": "s", "memory": "MiB", "stored": "MiB"}


def measure(lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured in a guest."""
    programs = peers(lab.cache, options.zfsbackup)
    with Guest.boot(lab, "mysql") as guest:
        shutil.copytree(programs, guest.out / "peers")
        argv = ["/opt/venv/bin/python", INSIDE, str(options.mebibytes), str(options.rounds)]
        guest.run(
            argv, cwd="/checkout", env={"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}, timeout=3600
        ).check()
        results: dict[str, Any] = json.loads((guest.out / "bench.json").read_text())
        return results


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Return medians by tool and measure, and our ratios to the better of the others, and of `auto` to zfs_uploader."""
    names = list(dict.fromkeys(sample["tool"] for sample in results["samples"]))
    result: dict[str, Figure] = {}
    others = [name for name in names if not name.startswith("zsnapdb")]
    for measure_name, unit in UNITS.items():
        scale = 1 << 20 if unit == "MiB" else 1
        medians = {
            name: statistics.median(s[measure_name] for s in results["samples"] if s["tool"] == name) / scale
            for name in names
        }
        result |= {f"{name}_{measure_name}": Figure(value, unit) for name, value in medians.items()}
        result[f"{measure_name}_vs_better_peer"] = Figure(
            medians["zsnapdb"] / min(medians[name] for name in others), "ratio", "<= 1.0"
        )
        result[f"auto_{measure_name}_vs_zfs_uploader"] = Figure(
            medians["zsnapdb_auto"] / medians["zfs_uploader"], "ratio", "<= 1.0"
        )
    return result


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--processors", type=int, choices=(1, 2), default=1, help="those of a guest (default: 1)")
    parser.add_argument("--mebibytes", type=int, default=300, metavar="N", help="about how much data (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--zfsbackup", type=Path, metavar="PROGRAM", help="a zfsbackup-go that is already built")
    options = parser.parse_args()
    try:
        results = measure(Lab.ready(Cache.default(), processors=options.processors), options)
    except LabError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    result = figures(results)
    print(f"{results['plain'] / 2**20:.0f} MiB in two datasets, {options.rounds} rounds, medians")
    for name, figure in result.items():
        print(f"  {name:32s} {figure.value:10.2f} {figure.unit:6s} {figure.goal or ''}")
    if options.json:
        options.json.write_text(
            json.dumps(
                {"figures": {name: f.document() for name, f in result.items()}, "samples": results["samples"]}, indent=1
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
