"""Virtual machines on real zvols, with a real libvirt: identities, devices, and what a killed run leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import virtual
from tests.lab.guest import Guest, Lab
from zsnapdb.planning.vm.domain import Domain, parse

BASE = (
    "vm",
    "base",
    "create",
    "tiny",
    "--image",
    "/opt/vm/disk.raw",
    "--domain-xml",
    "/checkout/tests/lab/inside/vm/tiny.xml",
)
CLONE = ("vm", "clone", "tiny", "--name-template", "pxc{n}", "--network", f"bridge:{virtual.BRIDGE}")
HOME = "tank/zsnapdb/vms"


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[Guest]:
    """A guest with libvirt, a base `tiny`, a foreign domain `foreign` and its foreign zvol."""
    with virtual.with_libvirt(lab) as guest:
        guest.run(["zfs", "create", "-V", "8M", "tank/foreign"]).check()
        tiny = "sed 's/>tiny</>foreign</; s#/dev/null#/dev/zvol/tank/foreign#' /checkout/tests/lab/inside/vm/tiny.xml"
        guest.run(["sh", "-ec", f"{tiny} > /run/foreign.xml; virsh -q define /run/foreign.xml"]).check()
        document(guest, *BASE)
        yield guest


@pytest.fixture
def nothing_left(host: Guest) -> Iterator[None]:
    """Afterwards no dataset, snapshot or domain has come or gone, the foreign ones included."""
    before = everything(host)
    yield
    assert everything(host) - before <= {f"{HOME}/machines"}
    assert before <= everything(host)


def document(guest: Guest, *words: str) -> dict[str, Any]:
    """Run zsnapdb and return its document."""
    printed: dict[str, Any] = json.loads(guest.run(["zsnapdb", *words, "--json"]).check().stdout)
    return printed


def everything(guest: Guest) -> set[str]:
    """Return all datasets, snapshots and domains."""
    listed = guest.run(["sh", "-ec", "zfs list -H -o name -t all; virsh -q list --all --uuid --name"]).check().stdout
    return {line.strip() for line in listed.splitlines() if line.strip()}


def domain(guest: Guest, name: str) -> Domain:
    """Return a domain as libvirt describes it."""
    return parse(guest.run(["virsh", "dumpxml", "--inactive", name]).check().stdout)


def test_three_clones_of_a_base_have_identities_and_devices_of_their_own(host: Guest, nothing_left: None) -> None:
    made = document(host, *CLONE, "--count", "3", "--no-start")
    domains = [domain(host, f"pxc{number}") for number in (1, 2, 3)]
    assert len({item.uuid for item in domains}) == 3
    assert len({mac for item in domains for mac in item.macs}) == 3
    for number, item in enumerate(domains, 1):
        (disk,) = item.volumes
        node = host.run(["readlink", "-f", str(disk.source)]).check().stdout.strip()
        assert host.run(["/usr/lib/udev/zvol_id", node]).check().stdout.strip() == f"{HOME}/machines/pxc{number}/vda"
        assert item.is_marked(f"pxc{number}", item.uuid, f"{HOME}/machines/pxc{number}")
    assert all(machine["own_bytes"] < 4 << 20 for machine in made["machines"])
    print("seconds of three clones:", made["seconds"], [m["own_bytes"] for m in made["machines"]])
    assert host.run(["zsnapdb", "vm", "base", "destroy", "tiny"]).code == 4
    for number in (1, 2, 3):
        document(host, "vm", "destroy", f"pxc{number}")


def test_a_clone_answers_on_its_own_address_and_a_reset_gives_it_the_disk_of_its_base(
    host: Guest, nothing_left: None
) -> None:
    ready = ("--wait-for", "serial:LAB READY")
    seconds = document(host, *CLONE, *ready)["seconds"]
    print("seconds of one running clone:", seconds)
    item = domain(host, "pxc1")
    first = answer(host, item)
    assert first == f"uuid={item.uuid} mac={item.macs[0]} count=1"
    assert document(host, "vm", "list")["machines"][0]["state"] == "running"
    assert document(host, "vm", "stop", "pxc1")["machine"]["state"] == "off"
    document(host, "vm", "reset", "pxc1")
    document(host, "vm", "destroy", "pxc1")


def answer(guest: Guest, item: Domain) -> str:
    """Return what the machine serves on the address that its own MAC gives."""
    address = ".".join(["10", *(str(int(part, 16)) for part in item.macs[0].split(":")[3:])])
    return guest.run(["busybox", "wget", "-q", "-T", "60", "-O", "-", f"http://{address}/"]).check().stdout.strip()


def test_a_name_that_a_foreign_domain_has_is_refused(host: Guest, nothing_left: None) -> None:
    done = host.run(["zsnapdb", *CLONE[:3], "--name-template", "foreign", "--no-start"])
    assert (done.code, "which zsnapdb did not make" in done.stderr) == (8, True)


def test_without_its_device_node_a_clone_is_not_made(host: Guest, nothing_left: None) -> None:
    host.run(["sh", "-c", "sed s/20s/2s/ /etc/zsnapdb/zsnapdb.toml > /run/impatient.toml"]).check()
    host.run(["udevadm", "control", "--stop-exec-queue"]).check()
    try:
        done = host.run(["zsnapdb", *CLONE, "--count", "2", "--no-start", "--config", "/run/impatient.toml"])
    finally:
        host.run(["udevadm", "control", "--start-exec-queue"]).check()
    assert done.code == 11
    assert re.search("device node .*pxc1/vda .* is not there after 2 s", done.stderr)


def test_what_a_killed_run_leaves_doctor_names_and_reap_removes(host: Guest, nothing_left: None) -> None:
    host.run(["udevadm", "control", "--stop-exec-queue"]).check()
    try:
        running = host.spawn(["zsnapdb", *CLONE, "--count", "2", "--no-start"])
        wait = f"until zfs list {HOME}/machines/pxc2/vda@zsnapdb-start; do sleep 0.1; done"
        host.run(["sh", "-c", wait], timeout=60).check()
        running.signal(9)
        running.wait(30)
    finally:
        host.run(["udevadm", "control", "--start-exec-queue"]).check()
    leaked = host.run(["zsnapdb", "doctor", "main"]).stdout
    assert re.search(r"half-made virtual machine \(phase making\).*pxc1", leaked)
    swept = document(host, "reap")["swept"]
    assert [(row["what"], row["name"], row["verdict"]) for row in swept if row["what"] == "vm"] == [
        ("vm", "pxc1", "reap"),
        ("vm", "pxc2", "reap"),
    ]


SOURCE = """
[instance.web.vm]
domain = "pxc1"
[instance.web]
repository = "folder"
[repository.folder]
url = "file:///run/machine-backups"
"""


def test_a_running_machine_is_backed_up_and_comes_back_on_a_disk_with_the_bytes_of_the_snapshot(
    host: Guest, nothing_left: None
) -> None:
    document(host, *CLONE, "--wait-for", "serial:LAB READY")
    host.run(["sh", "-ec", f"mkdir -p /run/machine-backups; cat > /run/web.toml <<'X'\n{SOURCE}X\n"]).check()
    config = ("--config", "/run/web.toml")
    first = document(host, "backup", "web", *config)["backup"]
    second = document(host, "backup", "web", *config)["backup"]
    assert (first["source"], first["grade"], second["grade"]) == ("vm", "crash", "crash")
    assert document(host, "verify", "web", "--deep", *config)
    disk, copy = f"{HOME}/machines/pxc1/vda", "tank/stored"
    for number, backup in enumerate((first, second)):
        received = "-u" if number == 0 else "-uF"
        reader = "python /checkout/tests/independent_reader.py /run/machine-backups web"
        host.run(["sh", "-ec", f"{reader} {backup['backup_id']} vda | zfs receive {received} {copy}"]).check()
    top = "tank/web-back"
    planned = document(host, "restore", "web", "--target", top, "--plan", *config)
    restored = document(host, "restore", "web", "--target", top, *config)
    assert planned["domain"]["name"] == restored["domain"]["name"] == "web-back"
    back, original = domain(host, "web-back"), domain(host, "pxc1")
    assert [item.source for item in back.volumes] == [f"/dev/zvol/{top}/vda"]
    assert not set(back.macs) & set(original.macs)
    assert "web-back" not in host.run(["virsh", "-q", "list", "--name"]).check().stdout.split()
    assert host.run(["zfs", "get", "-H", "-o", "value", "volmode", f"{top}/vda"]).check().stdout.strip() == "dev"
    compare = f"""
zfs clone {disk}@zsnapdb-{second["backup_id"]} tank/compared
udevadm settle
cmp /dev/zvol/tank/compared /dev/zvol/{copy}
cmp /dev/zvol/tank/compared /dev/zvol/{top}/vda
virsh -q undefine web-back
zfs destroy tank/compared
zfs destroy -r {copy}
zfs destroy -r {top}
"""
    host.run(["sh", "-ec", compare]).check()
    document(host, "vm", "destroy", "pxc1", "--with-foreign-snapshots")
