"""Virtual machines in a guest with libvirt: clones of a tiny base, backups of one, and what is looked at afterwards."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

from tests.documents import check_printed
from tests.faults.in_guest import QUICK
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
DRILLED = f"""
[vms]
start_timeout = "900s"
[instance.web.vm.boot]
kernel = "/opt/vm/vmlinuz"
initrd = "/opt/vm/initrd-agent"
cmdline = "{virtual.COMMAND_LINE}"
"""
"""What a drill of a machine needs more: the tiny machine boots from files of the host."""
DISK = f"{HOME}/machines/web1/vda"
BACK = "tank/web-back"
READY = ("--wait-for", "serial:LAB READY")
STATUS = '{"execute": "guest-fsfreeze-status"}'
FULL = """
(cat /etc/zsnapdb/zsnapdb.toml; printf '[clones]\\nfree_floor = "0"\\n') > /run/greedy.toml
zfs create tank/fill
zpool sync
zfs set refreservation=$(($(zfs get -H -p -o value available tank/fill) - 8192)) tank/fill
"""
STOP_UDEV = "pkill -STOP -x systemd-udevd"
STARTING = "/run/libvirt/qemu/pxc1.xml"
"""libvirt's status of the first clone while it starts and runs."""


def document(guest: Guest, *words: str) -> dict[str, Any]:
    """Run zsnapdb and return its document."""
    # The limits of the product are those that count: a machine may take `start_timeout` to boot.
    printed = guest.run([QUICK, *words, "--json"], timeout=3600).check().stdout
    check_printed((*words, "--json"), printed)
    parsed: dict[str, Any] = json.loads(printed)
    return parsed


def everything(guest: Guest) -> set[str]:
    """Return all datasets, snapshots and domains."""
    listed = guest.run(["sh", "-ec", "zfs list -H -o name -t all; virsh -q list --all --uuid --name"]).check().stdout
    return {line.strip() for line in listed.splitlines() if line.strip()}


def domain(guest: Guest, name: str) -> Domain:
    """Return a domain as libvirt describes it."""
    return parse(guest.run(["virsh", "dumpxml", "--inactive", name]).check().stdout)


def seed_of(guest: Guest, lab: Lab, name: str) -> str:
    """Return what Linux reads from the CD of the machine, as cloud-init finds it: by the label and the type."""
    shutil.copy(lab.kernel.parent / "src" / "fs" / "isofs" / "isofs.ko", guest.out)
    read = f"""
blkid -p -o export /var/lib/zsnapdb/vms/machines/{name}.seed.iso
insmod /out/isofs.ko
mount -t iso9660 -o loop,ro /var/lib/zsnapdb/vms/machines/{name}.seed.iso /mnt
cat /mnt/meta-data /mnt/user-data
umount /mnt
"""
    printed = guest.run(["sh", "-ec", read]).check().stdout
    assert "LABEL=cidata" in printed
    assert "TYPE=iso9660" in printed
    return printed


def answer(guest: Guest, item: Domain) -> str:
    """Return what the machine serves on the address that its own MAC gives."""
    address = ".".join(["10", *(str(int(part, 16)) for part in item.macs[0].split(":")[3:])])
    return guest.run(["busybox", "wget", "-q", "-T", "60", "-O", "-", f"http://{address}/"]).check().stdout.strip()


@contextlib.contextmanager
def udev_held(guest: Guest) -> Iterator[None]:
    """udev makes no links in the block. Links of destroyed volumes are gone before; after it, all that waited is done.

    The process is stopped. udev throws a command to stop its queue away when it is busy and cannot tell the sender
    ("Invalid sender uid 65534").
    """
    guest.run(["sh", "-ec", f"udevadm settle; {STOP_UDEV}"]).check()
    try:
        yield
    finally:
        # What waits came before this event.
        seen = "udevadm trigger --settle --action=change /sys/class/mem/null; udevadm settle"
        guest.run(["sh", "-ec", f"pkill -CONT -x systemd-udevd; {seen}"]).check()


def kill_libvirt(host: Guest, started: str) -> None:
    """Clone two machines, and kill libvirt as soon as its status of the first one holds the text."""
    running = host.spawn(["zsnapdb", *CLONE, "--count", "2"])
    # At a priority at which libvirt does nothing between two looks.
    kill = f"""p=$(pidof libvirtd); exec chrt -f 50 perl -e 'while (1) {{ select(undef, undef, undef, 0.0005);
        open(my $status, "<", "{STARTING}") or next; local $/; last if <$status> =~ /{started}/; }} kill 9, '$p"""
    host.run(["sh", "-c", kill]).check()
    assert running.wait(600).code != 0
    assert halves(host) == ["pxc1", "pxc2"]
    host.run([virtual.START]).check()


def halves(guest: Guest) -> list[str]:
    """Return the machines that `doctor` names as half made."""
    said = guest.run([QUICK, "doctor", "main"]).stdout
    return sorted(set(re.findall(rf"half-made virtual machine .*{HOME}/machines/([a-z0-9]+)", said)))


def swept(guest: Guest) -> list[str]:
    """Let `reap` remove what is half made, and return the names of the machines."""
    return sorted(row["name"] for row in document(guest, "reap")["swept"] if row["verdict"] == "reap")


def state_of_freeze(guest: Guest) -> str:
    """Return what the guest's agent says: frozen or thawed."""
    said = guest.run(["virsh", "qemu-agent-command", "web1", STATUS]).check().stdout
    return str(json.loads(said)["return"])


def backup(guest: Guest, *, minimum: str = "crash", freeze: str = "30s") -> dict[str, Any]:
    """Back the machine up, and return the backup."""
    guest.run(["sh", "-ec", f"cat > /run/web.toml <<'X'\n{SOURCE % (minimum, freeze)}X\n"]).check()
    done: dict[str, Any] = document(guest, "backup", "web", "--config", "/run/web.toml")["backup"]
    return done


def drill_and_kill(guest: Guest, listed: str, number: int = 9) -> int:
    """Drill the machine, send the drill a signal as soon as `virsh LISTED` has its domain, and return how it ended."""
    drill = guest.spawn(["zsnapdb", "drill", "web", "--config", "/run/drill.toml"])
    wait = f"until virsh -q {listed} --name | grep -q ^drill-; do sleep 0.2; done"
    guest.run(["sh", "-c", wait]).check()
    drill.signal(number)
    return drill.wait(600).code


def drilled(guest: Guest) -> list[str]:
    """Return the containers of the scratch copies of drills that are there."""
    listed = "zfs list -H -r -d 1 -o name tank/zsnapdb/scratch/web/drill | tail -n +2"
    return guest.run(["sh", "-c", listed]).check().stdout.split()


def needs_recovery(guest: Guest, made: dict[str, Any]) -> bool:
    """Whether the journal of the file system in the snapshot has to be replayed, as after a power cut (ext4(5))."""
    show = f"""
zfs clone {DISK}@zsnapdb-{made["backup_id"]} tank/looked
trap 'zfs destroy tank/looked' EXIT
udevadm settle
dumpe2fs -h /dev/zvol/tank/looked
"""
    return "needs_recovery" in guest.run(["sh", "-ec", show]).check().stdout


def compare_all(guest: Guest, backup_ids: list[str], snapshot: str = "") -> None:
    """Compare the restored disk with the newest snapshot, and each backup by another reader of the repository.

    `snapshot` is the backup whose snapshot the newest one has, if it is not its own.
    """
    copy = "tank/stored"
    for number, backup_id in enumerate(backup_ids):
        received = "-u" if number == 0 else "-uF"
        reader = "python /checkout/tests/independent_reader.py /run/machine-backups web"
        guest.run(["sh", "-ec", f"{reader} {backup_id} vda | zfs receive {received} {copy}"]).check()
    compare = f"""
zfs clone {DISK}@zsnapdb-{snapshot or backup_ids[-1]} tank/compared
udevadm settle
cmp /dev/zvol/tank/compared /dev/zvol/{copy}
cmp /dev/zvol/tank/compared /dev/zvol/{BACK}/vda
zfs destroy tank/compared
zfs destroy -r {copy}
"""
    guest.run(["sh", "-ec", compare]).check()
