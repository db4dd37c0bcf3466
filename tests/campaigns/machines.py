"""Campaign: three virtual machines are cloned from one base and run at once, on real zvols with a real libvirt.

    python3 tests/lab campaign machines [--rounds 1]

It runs on the host, in one guest. In every round the three machines must have UUIDs and MAC addresses of their own,
answer on their own addresses with them, keep what they write on their own disks, and forget it by a reset. Afterwards
nothing of them is left, and a foreign domain and its zvol are as before. The seconds of each phase are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import virtual
from tests.lab.guest import Guest, Lab

ANY_SERVER = True
ON_HOST = True
COUNT = 3
NETWORK = f"bridge:{virtual.BRIDGE}"
READY = ("--wait-for", "serial:LAB READY")


def document(guest: Guest, *words: str) -> dict[str, Any]:
    """Run zsnapdb and return its document."""
    printed: dict[str, Any] = json.loads(guest.run(["zsnapdb", *words, "--json"], timeout=3600).check().stdout)
    return printed


def answers(guest: Guest, name: str) -> dict[str, str]:
    """Return what the machine says of itself, on the address that its own MAC gives."""
    xml = guest.run(["virsh", "dumpxml", "--inactive", name]).check().stdout
    mac = xml.split("<mac address=")[1][1:18]
    address = ".".join(["10", *(str(int(part, 16)) for part in mac.split(":")[3:])])
    text = guest.run(["busybox", "wget", "-q", "-T", "300", "-O", "-", f"http://{address}/"]).check().stdout
    said = dict(word.split("=", 1) for word in text.split())
    assert said["mac"] == mac, (said, mac)
    return said


def everything(guest: Guest) -> set[str]:
    """Return all datasets, snapshots and domains."""
    listed = guest.run(["sh", "-ec", "zfs list -H -o name -t all; virsh -q list --all --uuid --name"]).check().stdout
    return {line.strip() for line in listed.splitlines() if line.strip()}


def one_round(guest: Guest, number: int) -> None:
    """Clone three machines, ask them, reset one, destroy them. AssertionError if anything is not as promised."""
    before = everything(guest)
    began = time.monotonic()
    words = ("--count", str(COUNT), "--name-template", "pxc{n}", "--network", NETWORK)
    made = document(guest, "vm", "clone", "tiny", *words, *READY)
    names = [machine["name"] for machine in made["machines"]]
    said = {name: answers(guest, name) for name in names}
    for key in ("uuid", "mac"):
        assert len({answer[key] for answer in said.values()}) == COUNT, said
    assert {machine["uuid"] for machine in made["machines"]} == {answer["uuid"] for answer in said.values()}
    assert [answer["count"] for answer in said.values()] == ["1"] * COUNT, said
    print(f"round {number}: {COUNT} machines after {time.monotonic() - began:.0f} s: {made['seconds']}", flush=True)
    document(guest, "vm", "stop", names[0])
    document(guest, "vm", "start", names[0], *READY)
    assert answers(guest, names[0])["count"] == "2"
    document(guest, "vm", "reset", names[0], *READY)
    assert answers(guest, names[0])["count"] == "1"
    own = {machine["name"]: machine["own_bytes"] for machine in document(guest, "vm", "list")["machines"]}
    print(f"round {number}: own bytes {own}", flush=True)
    for name in names:
        document(guest, "vm", "destroy", name)
    assert everything(guest) - before <= {"tank/zsnapdb/vms/machines"}
    assert before <= everything(guest)


def main() -> int:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flavour")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with virtual.with_libvirt(Lab.ready()) as guest:
        xml = "/checkout/tests/lab/inside/vm/tiny.xml"
        document(guest, "vm", "base", "create", "tiny", "--image", "/opt/vm/disk.raw", "--domain-xml", xml)
        for number in range(1, options.rounds + 1):
            one_round(guest, number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
