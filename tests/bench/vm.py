"""Measures how long three virtual machines take from one base, phase by phase, and what they occupy.

    python3 tests/bench/vm.py [--json FILE] [--rounds N] [--no-boot]

It boots a guest with libvirt and makes a base of the tiny machine. Each round clones three machines without starting
them: zvols, device nodes, domains. Then three machines are cloned and started once, until each prints that it is up;
QEMU emulates the processor there, so that time says nothing of other hosts. The seconds of the phases are those that
`zsnapdb vm clone --json` prints; the whole command is measured beside them. It ends with 0 whenever it could measure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import virtual
from tests.lab.cache import Cache
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

COUNT = 3
GOAL = 2.0
OWN_BYTES = 1 << 20
OURS = ("clone", "device", "define")
"""The phases that are zsnapdb's: the rest is libvirt's start of QEMU, and the guest's own boot."""
BASE = ("--image", "/opt/vm/disk.raw", "--domain-xml", "/checkout/tests/lab/inside/vm/tiny.xml")
NAMES = ("--name-template", "pxc{n}", "--count", str(COUNT), "--network", f"bridge:{virtual.BRIDGE}")


@dataclass(frozen=True)
class ClonedRound:
    """One `vm clone`: the seconds of its phases and of the whole command, and the bytes of each clone afterwards."""

    phases: dict[str, float]
    whole: float
    own_bytes: tuple[int, ...]

    @property
    def ours(self) -> float:
        """The seconds of zsnapdb's own phases."""
        return sum(self.phases[name] for name in OURS)


def document(guest: Guest, *words: str) -> dict[str, Any]:
    """Run zsnapdb and return its document."""
    printed: dict[str, Any] = json.loads(guest.run(["zsnapdb", *words, "--json"], timeout=3600).check().stdout)
    return printed


def cloned(guest: Guest, *words: str) -> ClonedRound:
    """Clone the machines, read what they occupy, and destroy them."""
    began = time.monotonic()
    made = document(guest, "vm", "clone", "tiny", *NAMES, *words)
    whole = time.monotonic() - began
    guest.run(["zpool", "sync"]).check()
    own = tuple(machine["own_bytes"] for machine in document(guest, "vm", "list")["machines"])
    for machine in made["machines"]:
        document(guest, "vm", "destroy", machine["name"])
    return ClonedRound(made["seconds"], whole, own)


def figures_of(rounds: list[ClonedRound], booted: ClonedRound | None) -> dict[str, dict[str, Any]]:
    """Return the figures: medians of the rounds, and what the machines that were started add."""

    def seconds(value: float, **more: str) -> dict[str, Any]:
        return {"value": round(value, 3), "unit": "s", **more}

    figures = {name: seconds(statistics.median(item.phases[name] for item in rounds)) for name in OURS}
    figures["ours"] = seconds(statistics.median(item.ours for item in rounds), goal=f"<= {GOAL:g}")
    figures["command_without_start"] = seconds(
        statistics.median(item.whole for item in rounds), note="with the start of Python and the plan"
    )
    figures["own_bytes_new"] = {"value": max(rounds[-1].own_bytes), "unit": "bytes", "goal": f"<= {OWN_BYTES}"}
    if booted is not None:
        figures["start"] = seconds(booted.phases["start"], note="libvirt starts QEMU, one machine after another")
        figures["ready"] = seconds(booted.phases["ready"], note="the guests' own boot, after the last start")
        figures["command_with_boot"] = seconds(booted.whole, note="to the moment in which all are ready")
        figures["command_without_boot"] = seconds(
            booted.whole - booted.phases["start"] - booted.phases["ready"], note="without QEMU and the guests"
        )
        figures["own_bytes_booted"] = {"value": max(booted.own_bytes), "unit": "bytes"}
    return figures


def main() -> int:
    """Measure, print, write; 0 if it could measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds without a start (default: 3)")
    parser.add_argument("--no-boot", action="store_true", help="start no machine")
    options = parser.parse_args()
    try:
        with virtual.with_libvirt(Lab.ready(Cache.default())) as guest:
            document(guest, "vm", "base", "create", "tiny", *BASE)
            rounds = [cloned(guest, "--no-start") for _ in range(max(1, options.rounds))]
            booted = None if options.no_boot else cloned(guest, "--wait-for", "serial:LAB READY")
    except LabError as error:
        print(f"vm: {error}", file=sys.stderr)
        return 1
    figures = figures_of(rounds, booted)
    print(f"{COUNT} machines of one base; the median of {len(rounds)}")
    for name, figure in figures.items():
        goal = f"   goal {figure['goal']}" if "goal" in figure else f"   {figure.get('note', '')}"
        print(f"  {name:24s} {figure['value']:>12} {figure['unit']}{goal}")
    if options.json:
        samples = [{"phases": item.phases, "whole": item.whole, "own_bytes": item.own_bytes} for item in rounds]
        options.json.write_text(json.dumps({"figures": figures, "samples": samples}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
