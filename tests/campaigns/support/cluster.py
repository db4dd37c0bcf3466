"""A Galera cluster of three nodes on the disks of three clones of one base.

The servers run in the lab's guest, each on the files of its machine's disk and at its own address. The machines stay
off: emulated, three servers take ten minutes to start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.lab.guest import Guest, Running

Document = Callable[..., dict[str, Any]]
ADDRESSES = ("10.0.0.11", "10.0.0.12", "10.0.0.13")
_NODE = "/checkout/tests/lab/inside/vm/cluster-node"
_TINY = "/checkout/tests/lab/inside/vm/tiny.xml"
_MACHINES = "tank/zsnapdb/vms/machines"
_BASE = f"""
for address in {" ".join(ADDRESSES)}; do ip addr add $address/8 dev labbr; done
/checkout/tests/lab/inside/vm/server-disk tank/cluster-gold
sed 's/>tiny</>cluster-gold</; s#/dev/null#/dev/zvol/tank/cluster-gold#' {_TINY} > /run/cluster-gold.xml
virsh -q define /run/cluster-gold.xml
mkdir -p /run/cluster-gold
mount /dev/zvol/tank/cluster-gold /run/cluster-gold
"""


def run_cluster(guest: Guest, document: Document, network: str) -> None:
    """Create a base from a node that was shut down, clone it three times, and form a cluster of the clones.

    AssertionError if the cluster does not have three nodes, if a row of one node is missing on another, or if a node
    joined by a copy of all data although its disk has them.
    """
    guest.run(["sh", "-ec", _BASE], timeout=300).check()
    first = start(guest, "/run/cluster-gold", ADDRESSES[0], "--wsrep-new-cluster")
    stop(guest, ADDRESSES[0], first)
    guest.run(["sh", "-ec", f"umount /run/cluster-gold; rm /run/node-{ADDRESSES[0]}.log"]).check()
    document(guest, "vm", "base", "create", "cluster", "--from-domain", "cluster-gold")
    words = ("--count", "3", "--name-template", "node{n}", "--network", network, "--no-start")
    made = document(guest, "vm", "clone", "cluster", *words)
    began = time.monotonic()
    nodes: list[Running] = []
    for machine, address in zip(made["machines"], ADDRESSES, strict=True):
        name = machine["name"]
        folder = f"/run/{name}"
        guest.run(["sh", "-ec", f"mkdir {folder}; mount /dev/zvol/{_MACHINES}/{name}/vda {folder}"]).check()
        nodes.append(start(guest, folder, address, *(() if nodes else ("--wsrep-new-cluster",))))
    sizes = [sql(guest, address, "SHOW STATUS LIKE 'wsrep_cluster_size'").split()[-1] for address in ADDRESSES]
    assert sizes == ["3", "3", "3"], sizes
    assert joined(guest) == ["IST", "IST"], joined(guest)
    print(f"3 clones are a cluster of {sizes[0]} after {time.monotonic() - began:.0f} s, no copy was made", flush=True)
    sql(guest, ADDRESSES[0], "CREATE TABLE ledger.written (address VARCHAR(20) PRIMARY KEY)")
    for address in ADDRESSES:
        sql(guest, address, f"INSERT INTO ledger.written VALUES ('{address}')")
    for address in ADDRESSES:
        read = sql(guest, address, "SET wsrep_sync_wait = 1; SELECT address FROM ledger.written ORDER BY address")
        assert tuple(read.split()) == ADDRESSES, (address, read)
    print("a row that each node wrote is read on the others", flush=True)
    for machine, address, node in reversed(list(zip(made["machines"], ADDRESSES, nodes, strict=True))):
        stop(guest, address, node)
        guest.run(["umount", f"/run/{machine['name']}"]).check()
        document(guest, "vm", "destroy", machine["name"])


def start(guest: Guest, folder: str, address: str, *options: str) -> Running:
    """Start the node, and wait until it is synced."""
    running = guest.spawn([_NODE, folder, address, *options])
    until = time.monotonic() + 300
    while "Synced" not in state(guest, address):
        assert not running.done.is_set(), log(guest, address)
        assert time.monotonic() < until, log(guest, address)
        time.sleep(1)
    return running


def stop(guest: Guest, address: str, running: Running) -> None:
    sql(guest, address, "SHUTDOWN")
    running.wait(120).check()


def state(guest: Guest, address: str) -> str:
    """Return the node's state, "" if it does not answer."""
    return guest.run(client(address, "SHOW STATUS LIKE 'wsrep_local_state_comment'")).stdout


def sql(guest: Guest, address: str, text: str) -> str:
    return guest.run(client(address, text), timeout=120).check().stdout


def client(address: str, text: str) -> list[str]:
    return ["mariadb", "--no-defaults", "--skip-ssl", "-uroot", "-S", f"/run/node-{address}.sock", "-BNe", text]


def log(guest: Guest, address: str) -> str:
    return guest.run(["tail", "-60", f"/run/node-{address}.log"]).stdout


def joined(guest: Guest) -> list[str]:
    """Return how nodes got their state: SST is a copy of all data, IST the missing commits."""
    script = "sed -n 's/.*rsync \\(.ST\\) completed on joiner.*/\\1/p' /run/node-*.log"
    return guest.run(["sh", "-c", script]).check().stdout.split()
