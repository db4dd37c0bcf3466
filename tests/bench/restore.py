"""Measures how long a whole restore takes.

    python3 tests/bench/restore.py [--json FILE] [--mebibytes N …] [--rounds N] [--flavour mysql|mariadb]

A backup of tables of that size is restored from the S3 server of the guest, with the share of each step, beside `zfs
receive` of the same streams from files into datasets with the same properties, and the server's own recovery and
shutdown. A line between the two: `zstd -d | zfs receive`, as who keeps compressed streams restores them. Who had the
processors of the guest is said too: the S3 server runs in the same guest. By the smallest and the largest size it says
what each GiB more takes to be received. `--handover run` is measured to the first answer of the restored server, beside
`zfs receive` and one start.
It boots a guest for each size and flavour, prints a table, and ends with 0 whenever it could measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import FLAVOURS, PYTHON, Figure
from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

INSIDE = "/checkout/tests/bench/inside/restore.py"
GOAL = 1.15
SLOPE_GOAL = 1.1


def measure(lab: Lab, flavour: str, mebibytes: int, rounds: int) -> dict[str, Any]:
    """Return what was measured in a guest of the flavour."""
    with Guest.boot(lab, flavour) as guest:
        env = {"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
        guest.run([PYTHON, INSIDE, str(mebibytes), str(rounds)], cwd="/checkout", env=env, timeout=3600).check()
        results: dict[str, Any] = json.loads((guest.out / "bench.json").read_text())
        return results


def best(results: dict[str, Any], which: str) -> dict[str, Any]:
    """Return the quickest round of one kind."""
    rounds: list[dict[str, Any]] = [sample[which] for sample in results["samples"]]
    return min(rounds, key=lambda seconds: seconds["whole"])


def had_the_processors(used: dict[str, float]) -> str:
    """Return who had the processors for how many seconds."""
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in used.items())


def lines(flavour: str, results: dict[str, Any]) -> list[str]:
    """Return the table of a flavour and size."""
    ours, hand = best(results, "ours"), best(results, "hand")
    rows = [
        (
            f"{flavour}: streams of {results['stream_bytes'] / 2**20:.0f} MiB, stored as"
            f" {results['stored_bytes'] / 2**20:.0f} MiB; the best of {len(results['samples'])}"
        )
    ]
    for name, seconds in ours.items():
        if name != "whole":
            rows.append(f"  {name:44s} {seconds:7.2f} s {100 * seconds / ours['whole']:5.1f} %")
    rest = ours["whole"] - sum(seconds for name, seconds in ours.items() if name != "whole")
    rows.append(f"  {'starting, planning':44s} {rest:7.2f} s {100 * rest / ours['whole']:5.1f} %")
    rows.append(f"  {'zsnapdb restore':44s} {ours['whole']:7.2f} s")
    rows.append(f"  {'zfs receive from files':44s} {hand['receive']:7.2f} s")
    middle = min((sample["decompressed"] for sample in results["samples"]), key=lambda sample: sample["receive"])
    rows.append(f"  {'zstd -d of files | zfs receive':44s} {middle['receive']:7.2f} s")
    quickest = min(results["samples"], key=lambda sample: sample["ours"]["whole"])
    rows.append(f"  processor seconds, zsnapdb restore: {had_the_processors(quickest['processor'])}")
    rows.append(f"  processor seconds, zfs receive from files: {had_the_processors(hand['processor'])}")
    rows.append(f"  processor seconds, zstd -d | zfs receive: {had_the_processors(middle['processor'])}")
    rows.append(
        f"  processor seconds, zfs receive from files and recovery: {had_the_processors(hand['processor whole'])}"
    )
    rows.append(f"  {'the servers own recovery and shutdown':44s} {hand['recover']:7.2f} s")
    rows.append(f"  {'both':44s} {hand['whole']:7.2f} s   ratio {ours['whole'] / hand['whole']:.2f}, goal <= {GOAL}")
    first, by_hand = first_answers(results)
    rows.append(f"  {'zsnapdb restore --handover run, first answer':44s} {first:7.2f} s   ratio {first / by_hand:.2f}")
    return rows


def receiving(results: dict[str, Any]) -> dict[str, float]:
    """Return the seconds in which all volumes were received, the least of each way."""
    samples = results["samples"]
    steps = [
        sum(seconds for name, seconds in sample["ours"].items() if name.startswith("receive-")) for sample in samples
    ]
    return {
        "restore": min(steps),
        "receive": min(sample["hand"]["receive"] for sample in samples),
        "decompressed": min(sample["decompressed"]["receive"] for sample in samples),
    }


def slope(flavour: str, small: dict[str, Any], large: dict[str, Any]) -> dict[str, Figure]:
    """Return what each GiB of a stream more takes to be received, by two sizes: fixed parts are left out."""
    gibibytes = (large["stream_bytes"] - small["stream_bytes"]) / 2**30
    before, after = receiving(small), receiving(large)
    each = {way: (after[way] - before[way]) / gibibytes for way in after}
    return {
        **{f"{flavour}_each_gib_{way}": Figure(seconds, "s") for way, seconds in each.items()},
        f"{flavour}_slope_to_receive": Figure(each["restore"] / each["receive"], "x", f"<= {SLOPE_GOAL}"),
        f"{flavour}_slope_to_decompressed": Figure(each["restore"] / each["decompressed"], "x"),
    }


def first_answers(results: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds to the first answer of a server that was restored by the command, and by hand: the least."""
    samples = results["samples"]
    return min(sample["first answer"] for sample in samples), min(sample["hand"]["first answer"] for sample in samples)


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--processors", type=int, choices=(1, 2), default=1, help="those of a guest (default: 1)")
    parser.add_argument(
        "--mebibytes",
        type=int,
        nargs="+",
        default=[1024, 4096],
        metavar="N",
        help="how much is in the tables (default: 1024 4096)",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="restores of each kind (default: 3)")
    parser.add_argument("--flavour", choices=FLAVOURS, help="only this one (default: both)")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    try:
        lab = Lab.ready(Cache.default(), processors=options.processors)
        for flavour in [options.flavour] if options.flavour else FLAVOURS:
            measured = []
            for mebibytes in sorted(options.mebibytes):
                results = measure(lab, flavour, mebibytes, options.rounds)
                samples[f"{flavour}_{mebibytes}"] = results
                measured.append(results)
                print("\n".join(lines(flavour, results)), flush=True)
                ours, hand = best(results, "ours")["whole"], best(results, "hand")["whole"]
                figures[f"{flavour}_{mebibytes}_restore"] = {"value": round(ours, 2), "unit": "s"}
                figures[f"{flavour}_{mebibytes}_by_hand"] = {"value": round(hand, 2), "unit": "s"}
                middle = min(sample["decompressed"]["receive"] for sample in results["samples"])
                figures[f"{flavour}_{mebibytes}_decompressed_receive"] = {"value": round(middle, 2), "unit": "s"}
                figures[f"{flavour}_{mebibytes}_ratio"] = {
                    "value": round(ours / hand, 3),
                    "unit": "x",
                    "goal": f"<= {GOAL}",
                }
                first, by_hand = first_answers(results)
                figures[f"{flavour}_{mebibytes}_first_answer"] = {"value": round(first, 2), "unit": "s"}
                figures[f"{flavour}_{mebibytes}_first_answer_ratio"] = {"value": round(first / by_hand, 3), "unit": "x"}
            if len(measured) > 1:
                slopes = slope(flavour, measured[0], measured[-1])
                figures |= {name: figure.document() for name, figure in slopes.items()}
                for name, figure in slopes.items():
                    print(f"  {name:44s} {figure.value:7.2f} {figure.unit}", flush=True)
    except LabError as error:
        print(f"restore: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "samples": samples}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
