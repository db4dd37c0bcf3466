"""Virtual machines on real zvols, with a real libvirt: identities, devices, and what a killed run leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.documents import check_printed
from tests.faults.in_guest import QUICK, speed_up
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
        speed_up(guest)
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
    printed = guest.run([QUICK, *words, "--json"]).check().stdout
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


def test_three_clones_of_a_base_have_identities_and_devices_of_their_own(
    host: Guest, lab: Lab, nothing_left: None
) -> None:
    made = document(host, *CLONE, "--count", "3", "--no-start", "--identity", "cloud-init")
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
    assert f"instance-id: {domains[1].uuid}\nlocal-hostname: pxc2\n" in seed_of(host, lab, "pxc2")
    for number in (1, 2, 3):
        document(host, "vm", "destroy", f"pxc{number}")


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


def test_a_name_that_a_foreign_domain_has_is_refused(host: Guest, nothing_left: None) -> None:
    done = host.run(["zsnapdb", *CLONE[:3], "--name-template", "foreign", "--no-start"])
    assert (done.code, "which zsnapdb did not make" in done.stderr) == (8, True)


def hold_udev(guest: Guest) -> None:
    """Have udev make no links until its queue is started again. Links of destroyed volumes are gone before."""
    guest.run(["udevadm", "settle"]).check()
    guest.run(["udevadm", "control", "--stop-exec-queue"]).check()


def test_without_its_device_node_a_clone_is_not_made(host: Guest, nothing_left: None) -> None:
    host.run(["sh", "-c", "sed s/20s/2s/ /etc/zsnapdb/zsnapdb.toml > /run/impatient.toml"]).check()
    hold_udev(host)
    try:
        done = host.run(["zsnapdb", *CLONE, "--count", "2", "--no-start", "--config", "/run/impatient.toml"])
    finally:
        host.run(["udevadm", "control", "--start-exec-queue"]).check()
    assert done.code == 11
    assert re.search("device node .*pxc1/vda .* is not there after 2 s", done.stderr)


def test_what_a_killed_run_leaves_doctor_names_and_reap_removes(host: Guest, nothing_left: None) -> None:
    hold_udev(host)
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


def kill_libvirt(host: Guest, started: str) -> None:
    """Clone two machines, and kill libvirt as soon as its status of the first one holds the text."""
    running = host.spawn(["zsnapdb", *CLONE, "--count", "2"])
    # At a priority at which libvirt does nothing between two looks.
    kill = f"""p=$(pidof libvirtd); exec chrt -f 50 perl -e 'while (1) {{ select(undef, undef, undef, 0.0005);
        open(my $status, "<", "{STARTING}") or next; local $/; last if <$status> =~ /{started}/; }} kill 9, '$p"""
    host.run(["sh", "-c", kill], timeout=300).check()
    assert running.wait(300).code != 0
    assert halves(host) == ["pxc1", "pxc2"]
    host.run([virtual.START]).check()


STARTING = "/run/libvirt/qemu/pxc1.xml"


def test_libvirt_killed_before_the_machines_run_leaves_nothing_that_reap_does_not_remove(
    host: Guest, nothing_left: None
) -> None:
    kill_libvirt(host, "pid=.[1-9]")
    assert swept(host) == ["pxc1", "pxc2"]
    assert halves(host) == []
    assert host.run(["pidof", "qemu-system-x86_64"]).code == 1


def test_of_a_machine_that_libvirt_holds_for_ever_reap_says_what_frees_it_and_then_removes_it(
    host: Guest, nothing_left: None
) -> None:
    kill_libvirt(host, "pid=.0")
    held = host.run([QUICK, "reap"])
    assert (held.code, f"remove {STARTING}" in held.stderr) == (9, True), held.stderr
    assert halves(host) == ["pxc1"]
    host.run(["sh", "-ec", f"kill -9 $(pidof libvirtd); rm {STARTING}; {virtual.START}"]).check()
    assert swept(host) == ["pxc1"]
    assert halves(host) == []


def test_a_pool_that_is_full_makes_no_machine_and_a_full_enough_one_is_refused_before(
    host: Guest, nothing_left: None
) -> None:
    done = host.run(["sh", "-ec", FULL])
    assert done.code == 0, done.stderr
    try:
        before = everything(host)
        refused = host.run([QUICK, *CLONE, "--count", "2", "--no-start"])
        assert (refused.code, "clones.free_floor" in refused.stderr) == (4, True)
        failed = host.run([QUICK, *CLONE, "--count", "2", "--no-start", "--config", "/run/greedy.toml"])
        assert (failed.code, "out of space" in failed.stderr) == (4, True)
        assert everything(host) - before <= {f"{HOME}/machines"}
        assert halves(host) == []
    finally:
        host.run(["zfs", "destroy", "tank/fill"]).check()


FULL = """
(cat /etc/zsnapdb/zsnapdb.toml; printf '[clones]\\nfree_floor = "0"\\n') > /run/greedy.toml
zfs create tank/fill
zpool sync
zfs set refreservation=$(($(zfs get -H -p -o value available tank/fill) - 8192)) tank/fill
"""


def halves(guest: Guest) -> list[str]:
    """Return the machines that `doctor` names as half made."""
    said = guest.run([QUICK, "doctor", "main"]).stdout
    return sorted(set(re.findall(rf"half-made virtual machine .*{HOME}/machines/([a-z0-9]+)", said)))


def swept(guest: Guest) -> list[str]:
    """Let `reap` remove what is half made, and return the names of the machines."""
    return sorted(row["name"] for row in document(guest, "reap")["swept"] if row["verdict"] == "reap")


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
DISK = f"{HOME}/machines/web1/vda"
BACK = "tank/web-back"
READY = ("--wait-for", "serial:LAB READY")
STATUS = '{"execute": "guest-fsfreeze-status"}'


@pytest.fixture(scope="module")
def running(host: Guest) -> Iterator[Domain]:
    """The machine `web1`, cloned from the base and running, with a guest agent."""
    made = document(host, *CLONE[:3], "--name-template", "web1", *CLONE[5:], *READY)
    print("seconds of one running clone:", made["seconds"])
    host.run(["mkdir", "-p", "/run/machine-backups"]).check()
    yield domain(host, "web1")
    document(host, "vm", "destroy", "web1", "--with-foreign-snapshots")


def test_a_clone_answers_on_its_own_address(host: Guest, running: Domain, nothing_left: None) -> None:
    assert answer(host, running) == f"uuid={running.uuid} mac={running.macs[0]} count=1"
    assert [row["state"] for row in document(host, "vm", "list")["machines"]] == ["running"]


def test_a_backup_that_claims_to_be_frozen_has_a_clean_file_system_and_one_without_a_freeze_has_not(
    host: Guest, running: Domain
) -> None:
    frozen = backup(host, minimum="frozen")
    crash = backup(host, freeze="0s")
    assert (frozen["source"], frozen["grade"], crash["grade"]) == ("vm", "frozen", "crash")
    assert not needs_recovery(host, frozen)
    assert needs_recovery(host, crash)
    assert answer(host, running), "the guest is thawed and serves"
    assert state_of_freeze(host) == "thawed"


HELD = """
[[instance.web.hooks]]
when = "locked"
run = ["/bin/sh", "-c", "touch /run/held; exec sleep 60"]
timeout = "60s"
"""


@pytest.mark.parametrize(("number", "deadline"), [(signal.SIGKILL, "60s"), (signal.SIGSTOP, "5s")])
def test_a_guest_thaws_when_its_backup_is_killed_or_hangs_in_the_middle_of_the_freeze(
    host: Guest, running: Domain, number: int, deadline: str
) -> None:
    text = SOURCE.replace("[repository.folder]", f"{HELD}[repository.folder]") % ("frozen", deadline)
    host.run(["sh", "-ec", f"rm -f /run/held; cat > /run/held.toml <<'X'\n{text}X\n"]).check()
    backing_up = host.spawn(["zsnapdb", "backup", "web", "--config", "/run/held.toml"])
    host.run(["sh", "-c", "until [ -e /run/held ]; do sleep 0.1; done"], timeout=120).check()
    assert state_of_freeze(host) == "frozen"
    backing_up.signal(number)
    thawed = f"until virsh qemu-agent-command web1 '{STATUS}' | grep -q thawed; do sleep 0.2; done"
    host.run(["sh", "-c", thawed], timeout=30).check()
    backing_up.signal(signal.SIGCONT)
    assert backing_up.wait(120).code != 0
    # At once: for five seconds the guard of a killed backup looks for a freeze that libvirt began late.
    assert backup(host, minimum="frozen")["grade"] == "frozen"


LOSING = """
[[instance.web.hooks]]
when = "locked"
run = ["/usr/bin/virsh", "qemu-agent-command", "web1", '{"execute": "lab-thaw"}']
timeout = "60s"
"""


def test_a_guest_that_thaws_by_itself_in_the_middle_of_the_freeze_gives_no_frozen_backup(
    host: Guest, running: Domain
) -> None:
    text = SOURCE.replace("[repository.folder]", f"{LOSING}[repository.folder]") % ("frozen", "60s")
    host.run(["sh", "-ec", f"cat > /run/losing.toml <<'X'\n{text}X\n"]).check()
    done = host.run([QUICK, "backup", "web", "--config", "/run/losing.toml"])
    assert (done.code, "its agent thawed 0 of 1 file systems" in done.stderr) == (11, True), done.stderr
    assert state_of_freeze(host) == "thawed"
    assert backup(host, minimum="frozen")["grade"] == "frozen"


def test_machines_are_cloned_from_a_backup_of_a_running_machine_which_does_not_notice(
    host: Guest, running: Domain
) -> None:
    made = backup(host, minimum="frozen")
    snapshot = f"{DISK}@zsnapdb-{made['backup_id']}"
    before = everything(host) | {host.run(["virsh", "dumpxml", "web1"]).check().stdout}
    words = ("vm", "clone", "web", "--name-template", "copy{n}", "--count", "2", "--no-start")
    cloned = document(host, *words, "--config", "/run/web.toml")
    assert (cloned["base"], cloned["grade"]) == (f"web@{made['backup_id']}", "frozen")
    copies = [f"{HOME}/machines/copy{number}/vda" for number in (1, 2)]
    origins = host.run(["zfs", "get", "-H", "-o", "value", "origin", *copies]).check().stdout.split()
    assert origins == [snapshot, snapshot]
    assert host.run(["zfs", "destroy", snapshot]).code != 0
    for name in ("copy1", "copy2"):
        item = domain(host, name)
        assert item.uuid != running.uuid
        assert not set(item.macs) & set(running.macs)
        document(host, "vm", "reset", name)
    assert host.run(["cmp", *(f"/dev/zvol/{copy}" for copy in copies)]).code == 0
    for name in ("copy1", "copy2"):
        document(host, "vm", "destroy", name)
    assert everything(host) | {host.run(["virsh", "dumpxml", "web1"]).check().stdout} == before
    gone = host.run([QUICK, "vm", "clone", "web@20200101T000000Z-0000", *words[3:], "--config", "/run/web.toml"])
    assert (gone.code, "zsnapdb restore web" in gone.stderr) == (6, True)


def test_a_machine_comes_back_on_zvols_with_the_bytes_of_the_snapshot_and_a_domain_of_its_own(
    host: Guest, running: Domain
) -> None:
    host.run(["virsh", "-q", "shutdown", "web1", "--mode", "agent"]).check()
    host.run(["sh", "-c", "until virsh domstate web1 | grep -q shut; do sleep 0.5; done"], timeout=60).check()
    off = backup(host, minimum="quiesced")
    assert off["grade"] == "quiesced"
    assert not needs_recovery(host, off)
    config = ("--config", "/run/web.toml")
    made = document(host, "consolidate", "web", *config)["backup"]
    assert (made["full"], made["grade"], len(made["volumes"])) == (True, "quiesced", 1)
    assert document(host, "verify", "web", "--deep", *config)
    planned = document(host, "restore", "web", "--target", BACK, "--plan", *config)
    assert "the restored domain lacks os/kernel /opt/vm/vmlinuz" in planned["notes"]
    restored = document(host, "restore", "web", "--target", BACK, *config)
    assert planned["domain"]["name"] == restored["domain"]["name"] == "web-back"
    back = domain(host, "web-back")
    assert [item.source for item in back.volumes] == [f"/dev/zvol/{BACK}/vda"]
    assert back.uuid != running.uuid
    assert not set(back.macs) & set(running.macs)
    assert "web-back" not in host.run(["virsh", "-q", "list", "--name"]).check().stdout.split()
    assert host.run(["zfs", "get", "-H", "-o", "value", "volmode", f"{BACK}/vda"]).check().stdout.strip() == "dev"
    stored = [item["backup_id"] for item in document(host, "list", "web", *config)["backups"]]
    assert stored[-1] == made["backup_id"]
    compare_all(host, stored[:-1])
    compare_all(host, stored[-1:], off["backup_id"])
    host.run(["sh", "-ec", f"virsh -q undefine web-back; zfs destroy -r {BACK}"]).check()
    kept = f"zfs list -H -d 1 -t snapshot,bookmark -o name {DISK} | grep -v @zsnapdb-start | xargs -n 1 zfs destroy"
    host.run(["sh", "-ec", kept]).check()
    document(host, "vm", "reset", "web1")
    same = "cmp -n 33554432 /dev/zvol/%s /opt/vm/disk.raw"
    host.run(["sh", "-ec", same % DISK]).check()


def state_of_freeze(guest: Guest) -> str:
    """Return what the guest's agent says: frozen or thawed."""
    said = guest.run(["virsh", "qemu-agent-command", "web1", STATUS]).check().stdout
    return str(json.loads(said)["return"])


def backup(guest: Guest, *, minimum: str = "crash", freeze: str = "30s") -> dict[str, Any]:
    """Back the machine up, and return the backup."""
    guest.run(["sh", "-ec", f"cat > /run/web.toml <<'X'\n{SOURCE % (minimum, freeze)}X\n"]).check()
    done: dict[str, Any] = document(guest, "backup", "web", "--config", "/run/web.toml")["backup"]
    return done


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
