"""Virtual machines on real zvols, with a real libvirt: identities, devices, and what a killed run leaves."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from tests.faults.in_guest import QUICK, speed_up
from tests.faults.machines import (
    BACK,
    BASE,
    CLONE,
    DISK,
    DRILLED,
    FULL,
    HOME,
    READY,
    SOURCE,
    STARTING,
    STATUS,
    answer,
    backup,
    compare_all,
    document,
    domain,
    drill_and_kill,
    drilled,
    everything,
    halves,
    kill_libvirt,
    needs_recovery,
    seed_of,
    state_of_freeze,
    swept,
    udev_held,
)
from tests.lab import virtual
from tests.lab.guest import Guest, Lab
from zsnapdb.planning.vm.domain import Domain


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


def test_a_name_that_a_foreign_domain_has_is_refused(host: Guest, nothing_left: None) -> None:
    done = host.run(["zsnapdb", *CLONE[:3], "--name-template", "foreign", "--no-start"])
    assert (done.code, "which zsnapdb did not make" in done.stderr) == (8, True)


def test_without_its_device_node_a_clone_is_not_made(host: Guest, nothing_left: None) -> None:
    host.run(["sh", "-c", "sed s/20s/2s/ /etc/zsnapdb/zsnapdb.toml > /run/impatient.toml"]).check()
    with udev_held(host):
        done = host.run(["zsnapdb", *CLONE, "--count", "2", "--no-start", "--config", "/run/impatient.toml"])
    assert done.code == 11
    assert re.search("device node .*pxc1/vda .* is not there after 2 s", done.stderr)


def test_what_a_killed_run_leaves_doctor_names_and_reap_removes(host: Guest, nothing_left: None) -> None:
    with udev_held(host):
        running = host.spawn(["zsnapdb", *CLONE, "--count", "2", "--no-start"])
        wait = f"until zfs list {HOME}/machines/pxc2/vda@zsnapdb-start; do sleep 0.1; done"
        host.run(["sh", "-c", wait]).check()
        running.signal(9)
        running.wait(30)
    leaked = host.run(["zsnapdb", "doctor", "main"]).stdout
    assert re.search(r"half-made virtual machine \(phase making\).*pxc1", leaked)
    swept = document(host, "reap")["swept"]
    assert [(row["what"], row["name"], row["verdict"]) for row in swept if row["what"] == "vm"] == [
        ("vm", "pxc1", "reap"),
        ("vm", "pxc2", "reap"),
    ]


def test_libvirt_killed_before_the_machines_run_leaves_nothing_that_reap_does_not_remove(
    host: Guest, nothing_left: None
) -> None:
    kill_libvirt(host, "pid=.[1-9]")
    assert swept(host) == ["pxc1", "pxc2"]
    assert halves(host) == []
    assert host.run(["pidof", "qemu-system-x86_64"]).code == 1


# Each run: the test before, whose machines libvirt lets go, and in tests/unit/jobs/vm/test_machines.py
# test_what_a_failed_run_cannot_remove_doctor_names_and_reap_removes.
@pytest.mark.seldom
def test_of_a_machine_that_libvirt_holds_for_ever_reap_says_what_frees_it_and_then_removes_it(
    host: Guest, nothing_left: None
) -> None:
    kill_libvirt(host, "pid=.0")
    reap = host.run([QUICK, "reap"])
    assert (reap.code, f"remove {STARTING}" in reap.stderr) == (9, True), reap.stderr
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


# One guard thaws after both. Each run tests the late one in tests/unit/vm/test_thaw_guard.py:
# test_a_run_that_is_late_does_not_keep_its_guest_frozen.
@pytest.mark.parametrize(
    ("number", "deadline", "limit"),
    [(signal.SIGKILL, "60s", 30), pytest.param(signal.SIGSTOP, "20s", 600, marks=pytest.mark.seldom)],
)
def test_a_guest_thaws_when_its_backup_is_killed_or_hangs_in_the_middle_of_the_freeze(
    host: Guest, running: Domain, number: int, deadline: str, limit: float
) -> None:
    """One that is killed is noticed long before the deadline."""
    text = SOURCE.replace("[repository.folder]", f"{HELD}[repository.folder]") % ("frozen", deadline)
    host.run(["sh", "-ec", f"rm -f /run/held; cat > /run/held.toml <<'X'\n{text}X\n"]).check()
    backing_up = host.spawn(["zsnapdb", "backup", "web", "--config", "/run/held.toml"])
    host.run(["sh", "-c", "until [ -e /run/held ]; do sleep 0.1; done"]).check()
    assert state_of_freeze(host) == "frozen"
    backing_up.signal(number)
    thawed = f"until virsh qemu-agent-command web1 '{STATUS}' | grep -q thawed; do sleep 0.2; done"
    host.run(["sh", "-c", thawed], timeout=limit).check()
    backing_up.signal(signal.SIGCONT)
    assert backing_up.wait(600).code != 0
    # At once: for five seconds the guard of a killed backup looks for a freeze that libvirt began late.
    assert backup(host, minimum="frozen")["grade"] == "frozen"


LOSING = """
[[instance.web.hooks]]
when = "locked"
run = ["/usr/bin/virsh", "qemu-agent-command", "web1", '{"execute": "lab-thaw"}']
timeout = "60s"
"""


# Each run: in tests/unit/jobs/backup/test_vm_source.py test_a_guest_that_thaws_before_the_snapshot_is_there_is_a_crash,
# and with QEMU's own agent test_the_deadline_in_the_guest_thaws_and_the_host_learns_that_the_freeze_was_lost.
@pytest.mark.seldom
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


# The next drill removes what no reap did: tests/unit/jobs/trial/test_machine_drill.py.
def test_a_drill_boots_the_machine_and_what_killed_drills_leave_is_named_and_goes_with_reap(
    host: Guest, running: Domain
) -> None:
    made = backup(host)
    # A machine that idles keeps QEMU as busy as one that works: the drilled one would have half of the processor.
    host.run(["virsh", "-q", "suspend", "web1"]).check()
    text = SOURCE % ("crash", "0s") + DRILLED
    host.run(["sh", "-ec", f"cat > /run/drill.toml <<'X'\n{text}X\n"]).check()
    config = ("--config", "/run/drill.toml")
    before = everything(host)
    homes = {"tank/zsnapdb/scratch", "tank/zsnapdb/scratch/web", "tank/zsnapdb/scratch/web/drill"}
    assert drill_and_kill(host, "list --all", signal.SIGTERM) == 130
    assert everything(host) - before <= homes
    drill_and_kill(host, "list")
    (container,) = drilled(host)
    named = host.run([QUICK, "doctor", "web", *config]).stdout
    assert f"machine whose drill was killed: {container}" in named
    reaped = document(host, "reap", *config)["swept"]
    assert ("drilled machine", container, "reap") in [(row["what"], row["name"], row["verdict"]) for row in reaped]
    assert drilled(host) == []
    evidence = document(host, "drill", "web", *config)["drill"]
    assert (evidence["outcome"], evidence["backup_id"]) == ("passed", made["backup_id"]), evidence
    assert [check["kind"] for check in evidence["checks"]] == ["restore", "boot"]
    assert everything(host) - before <= homes
    assert before <= everything(host)
    host.run(["virsh", "-q", "resume", "web1"]).check()
    assert answer(host, running), "the machine that was backed up still serves"
    assert document(host, "drills", "web", *config)["drills"] == [evidence]
    assert document(host, "status", "web", *config)["drill"]["drill_id"] == evidence["drill_id"]


def test_a_machine_comes_back_on_zvols_with_the_bytes_of_the_snapshot_and_a_domain_of_its_own(
    host: Guest, running: Domain
) -> None:
    host.run(["virsh", "-q", "shutdown", "web1", "--mode", "agent"]).check()
    host.run(["sh", "-c", "until virsh domstate web1 | grep -q shut; do sleep 0.5; done"]).check()
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
