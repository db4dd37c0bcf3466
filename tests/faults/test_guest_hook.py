"""The hook for guests, called by QEMU's own agent: server and agent run in the lab's guest, on an ext4 of a zvol."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.in_guest import PYTHON
from tests.lab.build import build
from tests.lab.guest import Guest, Lab, Running

HOOK = "/etc/zsnapdb/guest-freeze"
FILES = "/var/lib/mysql"
PLACE = "/run/zsnapdb-guest-freeze"
PREPARE = f"""
server=/checkout/tests/lab/inside/server
$server stop
zfs create -s -V 4G tank/inside
udevadm settle
mkfs.ext4 -q /dev/zvol/tank/inside
mount /dev/zvol/tank/inside /mnt
cp -a {FILES}/. /mnt/
chown --reference={FILES} /mnt
umount /mnt
mount /dev/zvol/tank/inside {FILES}
$server start
install -m 755 /checkout/hooks/guest-freeze {HOOK}
printf '[client]\\nuser = freezer\\npassword = lab-freezer\\nsocket = /run/mysqld/mysqld.sock\\n' > {HOOK}.cnf
chmod 600 {HOOK}.cnf
"""
ACCOUNT = """
CREATE USER freezer@localhost IDENTIFIED BY 'lab-freezer';
GRANT RELOAD, PROCESS ON *.* TO freezer@localhost;
CREATE DATABASE held;
CREATE TABLE held.t (id INT AUTO_INCREMENT PRIMARY KEY);
CREATE TABLE held.busy (id INT PRIMARY KEY);
"""
AGENT = f"/out/agent/qemu-ga -m unix-listen -p /run/qga.sock -t /run --fsfreeze-hook={HOOK}"
BLOCKERS = {
    "mysql": "LOCK TABLES held.busy WRITE; SELECT SLEEP(600)",
    "mariadb": "BACKUP STAGE START; SELECT SLEEP(600)",
}


class Inside:
    """The guest, with a server on a file system that the agent freezes."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.client = "/opt/mysql/bin/mysql" if guest.flavour == "mysql" else "/usr/bin/mariadb"
        self.argv = [self.client, "--no-defaults", "-uroot", "-S", "/run/mysqld/mysqld.sock", "-BNe"]

    def sql(self, text: str) -> str:
        return self.guest.run([*self.argv, text], timeout=300).check().stdout

    def begin(self, text: str) -> Running:
        return self.guest.spawn([*self.argv, text])

    def wait_for_state(self, statement: str, state: str) -> None:
        """Wait until a connection runs the statement in this state."""
        shown = f"{' '.join(self.argv[:-1])} -BNe 'SHOW FULL PROCESSLIST' | grep '{statement}' | grep -E '{state}'"
        self.guest.run(["sh", "-c", f"until {shown}; do sleep 0.1; done"], timeout=300).check()

    def settings(self, lock: float = 60, hold: float = 600) -> None:
        text = f"[guest-freeze]\nclient = {self.client}\nlock_seconds = {lock}\nhold_seconds = {hold}\n"
        self.guest.run(["sh", "-ec", f"printf '%s' '{text}' > {HOOK}.ini"]).check()

    def agent(self, *words: str) -> dict[str, Any]:
        """Ask the agent: the answer."""
        argv = [PYTHON, "/checkout/tests/lab/inside/vm/qga.py", *words]
        done = self.guest.run(argv, env={"PYTHONPATH": "/checkout"}, timeout=600).check()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def start_agent(self, *options: str) -> None:
        self.running = self.guest.spawn([*AGENT.split(), *options])
        self.guest.run(["sh", "-c", "until [ -S /run/qga.sock ]; do sleep 0.1; done"], timeout=300).check()

    def kill_agent(self) -> None:
        """Kill the agent, and what it would take with it."""
        self.running.signal(9)
        self.running.wait(30)
        self.guest.run(["rm", "-f", "/run/qga.sock"]).check()

    def is_frozen(self) -> bool:
        """Ask the kernel: what is frozen cannot be frozen again.

        A hook whose deadline has passed thaws each second what is frozen late: it may come before the second command.
        """
        script = f"fsfreeze --freeze {FILES} || exit 1; fsfreeze --unfreeze {FILES}; exit 0"
        return self.guest.run(["sh", "-c", script]).code != 0


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def inside(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Inside]:
    with Guest.boot(lab, request.param) as guest:
        shutil.copytree(build(lab.cache)["guest-agent"], guest.out / "agent", symlinks=True)
        guest.run(["sh", "-ec", PREPARE], timeout=300).check()
        inside = Inside(guest)
        inside.sql(ACCOUNT)
        inside.start_agent()
        yield inside


@pytest.fixture(autouse=True)
def works_afterwards(inside: Inside) -> Iterator[None]:
    """Afterwards nothing is frozen or locked, and nothing of the hook is left."""
    yield
    assert not inside.is_frozen()
    inside.sql("INSERT INTO held.t VALUES ()")
    assert inside.guest.run(["sh", "-c", f"ls {PLACE}"]).code != 0
    assert "freezer" not in inside.sql("SHOW PROCESSLIST")


def test_the_server_is_held_from_the_freeze_to_the_thaw(inside: Inside) -> None:
    inside.settings()
    assert inside.guest.run([HOOK, "freeze"]).check().stderr == ""
    writing = inside.begin("INSERT INTO held.t VALUES ()")
    inside.wait_for_state("INSERT INTO held.t", "Waiting for .*lock")
    assert inside.guest.run([HOOK, "thaw"]).check().stderr == ""
    writing.wait(300).check()


def test_the_agent_freezes_a_server_that_is_locked_and_what_is_snapshotted_is_clean(inside: Inside) -> None:
    inside.settings()
    assert inside.agent("guest-fsfreeze-freeze") == {"return": 1}
    assert inside.is_frozen()
    inside.guest.run(["zfs", "snapshot", "tank/inside@held"]).check()
    assert inside.agent("guest-fsfreeze-thaw") == {"return": 1}
    look = """
zfs clone tank/inside@held tank/looked
udevadm settle
dumpe2fs -h /dev/zvol/tank/looked
udevadm settle
zfs destroy tank/looked
zfs destroy tank/inside@held
"""
    assert "needs_recovery" not in inside.guest.run(["sh", "-ec", look]).check().stdout
    assert inside.agent("hold") == {"count": 1, "problem": ""}


def test_a_lock_that_is_not_granted_refuses_the_freeze_and_says_why(inside: Inside) -> None:
    inside.settings(lock=3)
    blocking = inside.begin(BLOCKERS[inside.guest.flavour])
    inside.wait_for_state("SELECT SLEEP", "User sleep")
    refused = inside.agent("guest-fsfreeze-freeze")
    assert "guest-freeze: the server was not locked" in refused["error"]["desc"]
    assert not inside.is_frozen()
    assert inside.agent("guest-fsfreeze-status") == {"return": "thawed"}
    inside.sql("INSERT INTO held.t VALUES ()")
    blocking.signal(9)
    blocking.wait(30)
    sleeping = "SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE info = 'SELECT SLEEP(600)'"
    deadline = time.monotonic() + 120
    while kills := inside.sql(sleeping).splitlines():
        assert time.monotonic() < deadline
        # MySQL may end the session itself, because its client has gone: then there is nothing to kill.
        inside.guest.run([*inside.argv, kills[0]])


# What the client of either server says goes to the agent.
@pytest.mark.any_server
def test_an_account_that_cannot_log_in_refuses_the_freeze_and_says_why(inside: Inside) -> None:
    inside.settings()
    inside.guest.run(["sed", "-i", "s/lab-freezer/wrong/", f"{HOOK}.cnf"]).check()
    assert "Access denied" in inside.agent("guest-fsfreeze-freeze")["error"]["desc"]
    inside.guest.run(["sed", "-i", "s/wrong/lab-freezer/", f"{HOOK}.cnf"]).check()


# The clock is that of the hook, whose lock the tests before show on both.
@pytest.mark.any_server
def test_the_deadline_in_the_guest_thaws_and_the_host_learns_that_the_freeze_was_lost(inside: Inside) -> None:
    inside.settings(hold=3)
    held = inside.agent("hold", f"{FILES}/probe")
    assert held["count"] == 1
    assert "its agent thawed 0 of 1 file systems" in held["problem"]
    assert "3 s after the lock" in held["problem"]


@pytest.mark.any_server
def test_the_deadline_in_the_guest_thaws_though_nobody_ever_asks_again(inside: Inside) -> None:
    inside.settings(hold=3)
    assert inside.agent("guest-fsfreeze-freeze") == {"return": 1}
    inside.kill_agent()
    writing = inside.begin("INSERT INTO held.t VALUES ()")
    writing.wait(300).check()
    assert not inside.is_frozen()
    inside.start_agent()
    # The agent has noted that it is frozen, and allows little else until it is told to thaw.
    assert "3 s after the lock" in inside.agent("guest-fsfreeze-thaw")["error"]["desc"]
    assert inside.agent("guest-fsfreeze-thaw") == {"return": 0}


def test_a_lock_that_is_lost_before_the_thaw_is_told(inside: Inside) -> None:
    inside.settings()
    inside.guest.run([HOOK, "freeze"]).check()
    ending = "SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = 'freezer'"
    inside.sql(inside.sql(ending).strip())
    lost = inside.guest.run([HOOK, "thaw"])
    assert lost.code == 1
    assert re.search("the lock was lost before|the session that held the lock had ended before", lost.stderr)
    assert inside.guest.run([HOOK, "thaw"]).code == 0


# What ends is the process of the hook, and its session with it.
@pytest.mark.any_server
@pytest.mark.parametrize(("number", "frozen"), [("TERM", False), ("KILL", True)])
def test_a_holder_that_ends_is_told_of_at_the_thaw(inside: Inside, number: str, frozen: bool) -> None:
    inside.settings()
    assert inside.agent("guest-fsfreeze-freeze") == {"return": 1}
    end = f"pid=$(pgrep -of 'guest-freeze freeze'); kill -{number} $pid; while [ -e /proc/$pid ]; do sleep 0.1; done"
    inside.guest.run(["sh", "-c", end], timeout=300).check()
    assert inside.is_frozen() == frozen
    lost = inside.agent("guest-fsfreeze-thaw")
    assert "does not answer" in lost["error"]["desc"]
    assert inside.agent("guest-fsfreeze-thaw") == {"return": 0}


def test_a_server_says_through_the_agent_what_it_had_recovered_to_and_a_blocked_agent_what_allows_it(
    inside: Inside,
) -> None:
    variable = "gtid_executed" if inside.guest.flavour == "mysql" else "gtid_binlog_pos"
    server = "/checkout/tests/lab/inside/server"
    inside.sql("INSERT INTO held.t VALUES ()")
    published = inside.sql(f"SELECT @@GLOBAL.{variable}").strip()
    inside.guest.run(["sh", "-ec", f"{server} kill; {server} start"], timeout=300).check()
    inside.sql("INSERT INTO held.t VALUES ()")
    client = inside.argv[:-1]
    answer = inside.agent("ask", *client)
    assert (answer["recovered"], answer["executed"] != published) == (published, True), answer
    assert answer["version"] == inside.sql("SELECT @@GLOBAL.version").strip()
    wrong = inside.agent("ask", client[0], "--no-defaults", "-unobody", "-pwrong", *client[3:])
    assert "Access denied" in wrong["refused"]
    inside.kill_agent()
    inside.start_agent("--block-rpcs=guest-exec")
    refused = inside.agent("ask", *client)["refused"]
    assert "guest-exec" in refused.partition("hint")[0]
    assert "must not be in block-rpcs" in refused
    inside.kill_agent()
    inside.start_agent()
