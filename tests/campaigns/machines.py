"""Campaign: three virtual machines are cloned from one base and run concurrently, on real zvols with a real libvirt.

    python3 tests/lab campaign machines [--rounds 1] [--only clones|backups|servers|drill|cluster|encrypted|power]

It runs on the host, in one guest. The seconds of each phase are printed.

- clones: in every round the three machines must have their own UUIDs and MAC addresses and answer on their own
  addresses. They must keep writes on their own disks, and lose them by a reset. Afterwards nothing of them is left, and
  a foreign domain and its zvol are unchanged.
- backups: a machine that writes without a pause is backed up in the grades crash, frozen and quiesced. Each backup is
  restored to new zvols with a new domain, compared with its snapshot and booted: it counts one boot more than the
  original. The file system journal needs a replay only after a crash.
- servers: three machines with a MariaDB are cloned; the campaign waits for each server's greeting. One is backed up in
  each grade during transfers over TCP, `quiesced` by its server's lock and a freeze. Each backup is restored and
  booted: its server has the ledger's invariant and every transfer that was acknowledged before.
- drill: a machine with a MariaDB and QEMU's own guest agent is backed up during transfers, and drilled. Its server is
  queried through the agent, and its GTIDs are between those published before and after the snapshot. A drill whose
  client cannot run must fail, and so must one whose manifest claims more published GTIDs. Both report why and leave
  nothing.
- cluster: three clones of a Galera node that was shut down form a cluster of three, without a copy of data, and each
  reads the others' rows. Their servers run in the lab's guest, on the disks of the machines, which stay off.
- encrypted: a machine on a disk that ZFS encrypts is backed up raw, restored byte for byte, booted and drilled with the
  old key. Without it, or with another key, the plans refuse.
- power: the power is cut while machines are cloned. `doctor` reports the unfinished ones, one `reap` removes all of
  them, and no other dataset or snapshot changes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support import cluster, encrypted_machines, machine_drills, server_machines
from tests.faults.machines import STOP_UDEV
from tests.lab import virtual
from tests.lab.guest import Guest, Lab

ANY_SERVER = True
ON_HOST = True
COUNT = 3
NETWORK = f"bridge:{virtual.BRIDGE}"
READY = ("--wait-for", "serial:LAB READY")


def document(guest: Guest, *words: str) -> dict[str, Any]:
    """Run zsnapdb and return its JSON document."""
    printed: dict[str, Any] = json.loads(guest.run(["zsnapdb", *words, "--json"], timeout=3600).check().stdout)
    return printed


def answers(guest: Guest, name: str) -> dict[str, str]:
    """Return the machine's own report, from the address that its MAC determines."""
    xml = guest.run(["virsh", "dumpxml", "--inactive", name]).check().stdout
    mac = xml.split("<mac address=")[1][1:18]
    address = ".".join(["10", *(str(int(part, 16)) for part in mac.split(":")[3:])])
    text = guest.run(["busybox", "wget", "-q", "-T", "300", "-O", "-", f"http://{address}/"]).check().stdout
    said = dict(word.split("=", 1) for word in text.split())
    assert said["mac"] == mac, (said, mac)
    return said


def everything(guest: Guest) -> set[str]:
    listed = guest.run(["sh", "-ec", "zfs list -H -o name -t all; virsh -q list --all --uuid --name"]).check().stdout
    return {line.strip() for line in listed.splitlines() if line.strip()}


def one_round(guest: Guest, number: int) -> None:
    """Clone three machines, query them, reset one, destroy them. AssertionError if a check fails."""
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


SOURCE = """
[instance.web.vm]
domain = "web1"
minimum_grade = "%s"
freeze_deadline = "%s"
[instance.web]
repository = "folder"
[repository.folder]
url = "file:///run/machine-backups"
"""
CONFIG = ("--config", "/run/web.toml")
DISK = "tank/zsnapdb/vms/machines/web1/vda"
HOME = "tank/zsnapdb/vms/machines"
KERNEL = "sed -n '/<kernel>/p; /<initrd>/p; /<cmdline>/p' /checkout/tests/lab/inside/vm/tiny.xml"


def backups_of_each_grade(guest: Guest) -> None:
    """Back up a busy machine in each grade, restore each backup and boot it. AssertionError if a check fails."""
    guest.run(["mkdir", "-p", "/run/machine-backups"]).check()
    document(guest, "vm", "clone", "tiny", "--name-template", "web1", "--network", NETWORK, *READY)
    agent(guest, "lab-load")
    made = {"crash": backup(guest, "crash", "0s"), "frozen": backup(guest, "frozen", "30s")}
    guest.run(["virsh", "-q", "shutdown", "web1", "--mode", "agent"]).check()
    guest.run(["sh", "-c", "until virsh domstate web1 | grep -q shut; do sleep 1; done"], timeout=300).check()
    made["quiesced"] = backup(guest, "quiesced", "30s")
    for grade, backup_id in made.items():
        restored(guest, grade, backup_id)


def agent(guest: Guest, command: str) -> None:
    """Send a command to the machine's agent."""
    guest.run(["virsh", "qemu-agent-command", "web1", json.dumps({"execute": command})], timeout=300).check()


def backup(guest: Guest, grade: str, freeze: str) -> str:
    """Back up the machine in this grade, and return the backup id."""
    guest.run(["sh", "-ec", f"cat > /run/web.toml <<'X'\n{SOURCE % (grade, freeze)}X\n"]).check()
    done = document(guest, "backup", "web", *CONFIG)["backup"]
    assert done["grade"] == grade, done
    print(f"backup {done['backup_id']} is {grade}", flush=True)
    return str(done["backup_id"])


def restored(guest: Guest, grade: str, backup_id: str) -> None:
    """Restore the backup, compare it with the snapshot, check its file system, and boot it."""
    name, top = f"back-{grade}", f"tank/back-{grade}"
    document(guest, "restore", "web", "--to", backup_id, "--target", top, *CONFIG)
    look = f"""
zfs clone {DISK}@zsnapdb-{backup_id} tank/looked
udevadm settle
cmp /dev/zvol/tank/looked /dev/zvol/{top}/vda
dumpe2fs -h /dev/zvol/tank/looked > /run/looked
e2fsck -fp /dev/zvol/tank/looked > /run/checked || [ $? = 1 ]
# udev reads what was written to, and holds it meanwhile.
udevadm settle
zfs destroy tank/looked
"""
    guest.run(["sh", "-ec", look]).check()
    needs_recovery = "needs_recovery" in guest.run(["cat", "/run/looked"]).check().stdout
    assert needs_recovery == (grade == "crash"), grade
    # The kernel is a file of the host; restored domains do not get it.
    start = f"""
{KERNEL} > /run/kernel
virsh dumpxml --inactive {name} | sed '/<type arch/r /run/kernel' > /run/booted.xml
sed -i "s#<serial type='pty'>#&<log file='/run/{name}.log' append='off'/>#" /run/booted.xml
virsh -q define /run/booted.xml
virsh -q start {name}
until grep -q 'LAB READY' /run/{name}.log; do sleep 1; done
virsh -q destroy {name}
virsh -q undefine {name}
"""
    guest.run(["sh", "-ec", start], timeout=900).check()
    said = guest.run(["cat", f"/run/{name}.log"]).check().stdout
    assert "count=2" in said, said
    print(
        f"the machine restored from the {grade} backup boots: {said.split('LAB READY')[1].split(chr(10))[0]}",
        flush=True,
    )
    guest.run(["zfs", "destroy", "-r", top]).check()


CUT = f"""
until zfs list {HOME}/pxc2/vda@zsnapdb-start; do sleep 0.1; done
zpool sync
"""


def power_cut_while_cloning(guest: Guest) -> None:
    """Cut the power when the zvols are cloned and no domain is defined. AssertionError if anything else is left."""
    listed = ["zfs", "list", "-H", "-o", "name", "-t", "all"]
    before = set(guest.run(listed).check().stdout.split())
    guest.run(["sh", "-ec", f"udevadm settle; {STOP_UDEV}"]).check()
    guest.spawn(["zsnapdb", "vm", "clone", "tiny", "--name-template", "pxc{n}", "--count", "2", "--no-start"])
    guest.run(["sh", "-c", CUT], timeout=600).check()
    guest.power_cut()
    guest.start()
    virtual.prepare(guest)
    said = guest.run(["zsnapdb", "doctor", "main"]).stdout
    named = set(re.findall(rf"half-made virtual machine .*{HOME}/([a-z0-9]+)", said))
    assert named == {"pxc1", "pxc2"}, said
    swept = {row["name"] for row in document(guest, "reap")["swept"] if row["verdict"] == "reap"}
    assert swept == named, swept
    left = set(guest.run(listed).check().stdout.split())
    assert before <= left, before - left
    assert left - before <= {HOME}, left - before
    print("a power cut while cloning: doctor named two machines, reap removed them", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flavour")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=("clones", "backups", "servers", "drill", "cluster", "encrypted", "power"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with virtual.with_libvirt(Lab.ready()) as guest:
        xml = "/checkout/tests/lab/inside/vm/tiny.xml"
        document(guest, "vm", "base", "create", "tiny", "--image", "/opt/vm/disk.raw", "--domain-xml", xml)
        for number in range(1, options.rounds + 1):
            if options.only in (None, "clones"):
                one_round(guest, number)
            if options.only in (None, "backups"):
                backups_of_each_grade(guest)
                document(guest, "vm", "destroy", "web1", "--with-foreign-snapshots")
                guest.run(["rm", "-rf", "/run/machine-backups"]).check()
        if options.only in (None, "servers"):
            server_machines.make_base(guest, document)
            server_machines.run_servers(guest, document, NETWORK)
        if options.only in (None, "drill"):
            machine_drills.run_drills(guest, document, NETWORK)
        if options.only in (None, "cluster"):
            cluster.run_cluster(guest, document, NETWORK)
        if options.only in (None, "encrypted"):
            encrypted_machines.run_encrypted(guest, document, NETWORK, READY)
        if options.only in (None, "power"):
            power_cut_while_cloning(guest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
