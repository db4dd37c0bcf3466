"""Measures how much a backup and a restore transfer twice when they are killed.

    python3 tests/bench/interruptions.py [--json FILE] [--mebibytes N] [--kills N] [--chunk N] [--flavour mysql|mariadb]

In a guest, a full backup and then its restore are killed with SIGKILL at random moments while they transfer, continued
each time, and let end at last. Chunks are small, so that a small server has as many chunks as a large one. The bytes
that a kill costs do not depend on the size of the data, so the share for a large server follows from the chunks of a
usual one. It ends with 0 only if both restored servers have exactly the data of the source.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import FLAVOURS, PYTHON, Figure, report
from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/interruptions.py"
LARGE_BYTES = 200 << 30
GOAL = "<= 0.01"


def measure(lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured in a guest."""
    with Guest.boot(lab, options.flavour) as guest:
        env = {"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
        words = [str(options.mebibytes), str(options.kills), str(options.chunk)]
        guest.run([PYTHON, INSIDE, *words], cwd="/checkout", env=env, timeout=3600).check()
        results: dict[str, Any] = json.loads((guest.out / "bench.json").read_text())
        return results


def figures(results: dict[str, Any], chunk: int) -> dict[str, Figure]:
    """Return the figures of a backup and of a restore."""
    found: dict[str, Figure] = {}
    usual = results["usual_chunk"]
    for name in ("backup", "restore"):
        row = results[name]
        twice = max(row["transferred"] - row["whole"], 0)
        chunks = twice / row["kills"] / (chunk << 20)
        found[f"{name}_twice"] = Figure(twice / row["whole"], "ratio")
        found[f"{name}_chunks_per_kill"] = Figure(chunks, "chunks")
        found[f"{name}_twice_of_200_gib"] = Figure(chunks * row["kills"] * usual / LARGE_BYTES, "ratio", GOAL)
        found[f"{name}_useless_runs"] = Figure(row["useless"], "runs")
        found[f"{name}_seconds"] = Figure(row["seconds"], "s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--mebibytes", type=int, default=1024, metavar="N", help="size of the tables (default: 1024)")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="kills of each command (default: 20)")
    parser.add_argument("--chunk", type=int, default=2, metavar="N", help="MiB of a chunk (default: 2)")
    parser.add_argument("--flavour", choices=FLAVOURS, default="mariadb")
    options = parser.parse_args()
    try:
        results = measure(Lab.ready(Cache.default()), options)
    except LabError as error:
        print(f"interruptions: {error}", file=sys.stderr)
        return 1
    report(figures(results, options.chunk), options.json)
    return 0 if all(results["exact"]) else 1


if __name__ == "__main__":
    sys.exit(main())
