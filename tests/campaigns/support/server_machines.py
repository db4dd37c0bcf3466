"""Machines with a MariaDB: a base, transfers over TCP during backups, and backups in each grade."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.lab.guest import Guest

PYTHON = "/opt/venv/bin/python"
LEDGER = f"{PYTHON} /checkout/tests/lab/inside/machine_ledger.py"
COUNT = 3
GRADES = ("crash", "frozen", "quiesced")
DISK = "tank/zsnapdb/vms/machines/pxc1/vda"
_TINY = "/checkout/tests/lab/inside/vm/tiny.xml"
_BASE = f"""
/checkout/tests/lab/inside/vm/server-disk tank/gold
sed 's/>tiny</>gold</; s#/dev/null#/dev/zvol/tank/gold#; s#>160<#>320<#' {_TINY} > /run/gold.xml
virsh -q define /run/gold.xml
mkdir -p /run/server-backups
echo lab-zsnapdb > /run/inside.password
chmod 600 /run/inside.password
"""
_SERVER = """
host = "%s"
password_file = "/run/inside.password"
tls = "required"
tls_ca = "/run/machine-ca.pem"
tls_verify = "ca"
lock = { deadline = "60s", budget = "5m" }
"""
_INSTANCE = """
[instance.inside]
repository = "folder"
%s
[instance.inside.vm]
domain = "pxc1"
minimum_grade = "%s"
freeze_deadline = "%s"
[repository.folder]
url = "file:///run/server-backups"
"""
CONFIG = ("--config", "/run/inside.toml")
Document = Callable[..., dict[str, Any]]


def make_base(guest: Guest, document: Document) -> None:
    """Create the base `pxc` from a domain whose disk has a server."""
    guest.run(["sh", "-ec", _BASE], timeout=300).check()
    document(guest, "vm", "base", "create", "pxc", "--from-domain", "gold")


def run_servers(guest: Guest, document: Document, network: str) -> None:
    """Clone three servers, change one without a pause, and back it up, restore it and query it in each grade.

    AssertionError if a check fails.
    """
    words = ("--count", str(COUNT), "--name-template", "pxc{n}", "--network", network, "--wait-for", "server")
    made = document(guest, "vm", "clone", "pxc", *words)
    addresses = [machine["addresses"][0] for machine in made["machines"]]
    assert len(set(addresses)) == COUNT, addresses
    print(f"{COUNT} servers greet on {', '.join(addresses)}: {made['seconds']}", flush=True)
    for address in addresses:
        ask(guest, address)
    for name in ("pxc2", "pxc3"):
        document(guest, "vm", "destroy", name)
    print(f"{COUNT} servers hold the ledger; two are removed", flush=True)
    backups = back_up_under_load(guest, document, addresses[0])
    document(guest, "vm", "stop", "pxc1")
    for grade, backup_id in backups.items():
        restored(guest, document, grade, backup_id)
    document(guest, "vm", "destroy", "pxc1", "--with-foreign-snapshots")


def ask(guest: Guest, address: str, *files: str) -> dict[str, Any]:
    """Return the server's ledger; LabError if its invariant does not hold."""
    argv = [*LEDGER.split(), "check", address, *files]
    said: dict[str, Any] = json.loads(guest.run(argv, timeout=300).check().stdout)
    return said


def back_up_under_load(guest: Guest, document: Document, address: str) -> dict[str, str]:
    """Back up the machine in each grade during transfers, and return the ids by grade.

    /run/GRADE.json has the transfers that were acknowledged before each backup.
    """
    # The machine's clock must not be ahead of the host's: the server ends a session that is idle while it holds the
    # lock.
    busy = ["virsh", "qemu-agent-command", "pxc1", json.dumps({"execute": "lab-busy"})]
    guest.run(busy, timeout=300).check()
    guest.spawn([*LEDGER.split(), "load", address, "/run/stop", "/run/acknowledged.json"])
    backups = {}
    for grade in GRADES:
        wait_for_transfers(guest, 20)
        server = _SERVER % address if grade == "quiesced" else ""
        text = _INSTANCE % (server, grade, "0s" if grade == "crash" else "30s")
        write = f"cat > /run/inside.toml <<'X'\n{text}X\ncp /run/acknowledged.json /run/{grade}.json"
        guest.run(["sh", "-ec", write]).check()
        done = document(guest, "backup", "inside", *CONFIG)["backup"]
        assert done["grade"] == grade, done
        print(f"backup {done['backup_id']} is {grade}: {done.get('reason', '')}", flush=True)
        backups[grade] = str(done["backup_id"])
    wait_for_transfers(guest, 5)
    guest.run(["touch", "/run/stop"]).check()
    print(f"the server after all backups: {ask(guest, address)}", flush=True)
    return backups


def wait_for_transfers(guest: Guest, more: int) -> None:
    """Wait until `more` further transfers were acknowledged."""
    began, goal = time.monotonic(), None
    while goal is None or acknowledged(guest) < goal:
        goal = goal or acknowledged(guest) + more
        assert time.monotonic() - began < 300, "the load does not go on"
        time.sleep(1)


def acknowledged(guest: Guest) -> int:
    """Return the number of acknowledged transfers."""
    done = guest.run(["cat", "/run/acknowledged.json"])
    return sum(json.loads(done.stdout).values()) if done.code == 0 else 0


def restored(guest: Guest, document: Document, grade: str, backup_id: str) -> None:
    """Restore the backup to new zvols, start the new domain, and query its server."""
    name, top = f"back-{grade}", f"tank/back-{grade}"
    document(guest, "restore", "inside", "--to", backup_id, "--target", top, *CONFIG)
    # A restored domain gets no kernel file of the host, and its network is isolated.
    start = f"""
sed -n '/<kernel>/p; /<initrd>/p; /<cmdline>/p' {_TINY} > /run/kernel
virsh dumpxml --inactive {name} | sed '/<type arch/r /run/kernel' > /run/booted.xml
sed -i "s#<interface type='network'>#<interface type='bridge'>#" /run/booted.xml
sed -i "s#<source network=.*#<source bridge='labbr'/>#" /run/booted.xml
sed -i "/<link state='down'/d; s#<serial type='pty'>#&<log file='/run/{name}.log' append='off'/>#" /run/booted.xml
virsh -q define /run/booted.xml
virsh -q start {name}
until grep -q 'ready for connections' /run/{name}.log; do sleep 1; done
sed -n 's/.*LAB READY.* address=\\([0-9.]*\\) .*/\\1/p' /run/{name}.log
"""
    address = guest.run(["sh", "-ec", start], timeout=900).check().stdout.split()[-1]
    held = ask(guest, address, f"/run/{grade}.json")
    print(f"the server restored from the {grade} backup holds {held}", flush=True)
    end = f"virsh -q destroy {name}; virsh -q undefine {name}; udevadm settle; zfs destroy -r {top}"
    guest.run(["sh", "-ec", end]).check()
