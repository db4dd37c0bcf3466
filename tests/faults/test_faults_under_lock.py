"""Whatever dies while the server is held still: no lock survives, nothing half-made is listed, the next run works."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tests.lab.guest import Guest, Lab

from .test_interrupted_backup import PREPARE, PYTHON, WRITE, backups, check_clean_and_working, snapshots

CONFIG = "/etc/zsnapdb/zsnapdb.toml"
SQL = (
    "import sys, json; sys.path.insert(0, '/checkout/tests/lab/inside'); import ledger; "
    "c = ledger.connect('/run/mysqld/mysqld.sock', 'root', '', None).cursor(); "
)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def guest(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, request.param) as found:
        found.run([PYTHON, "-c", PREPARE]).check()
        found.run(["zsnapdb", "backup"]).check()
        yield found


@pytest.fixture
def plain(guest: Guest) -> Iterator[None]:
    """The configuration as it was, before and after the test."""
    guest.run(["cp", CONFIG, "/tmp/plain.toml"]).check()
    yield
    guest.run(["cp", "/tmp/plain.toml", CONFIG]).check()


def sql(guest: Guest, statement: str) -> list[list[object]]:
    done = guest.run(
        [PYTHON, "-c", SQL + f"c.execute({statement!r}); print(json.dumps(c.fetchall(), default=str))"]
    ).check()
    found: list[list[object]] = json.loads(done.stdout)
    return found


def hook(guest: Guest, when: str, script: str, timeout: str = "30s", lock: str = 'deadline = "5s"') -> None:
    """Give the configuration one hook that runs the script."""
    guest.run(["sh", "-c", f"cat > /tmp/hook <<'E'\n#!/bin/sh\n{script}\nE\nchmod +x /tmp/hook"]).check()
    addition = (
        f'\n[instance.main.lock]\n{lock}\n[[instance.main.hooks]]\nwhen = "{when}"\nrun = "/tmp/hook"\ntimeout ='
        f' "{timeout}"\n'
    )
    guest.run(["sh", "-c", f"cat >> {CONFIG} <<'E'\n{addition}\nE\nrm -f /tmp/reached"]).check()


def wait_for(guest: Guest, path: str) -> None:
    guest.run(["sh", "-c", f"until [ -e {path} ]; do sleep 0.05; done"], timeout=600).check()


def is_held(guest: Guest) -> bool:
    """Whether DDL, which every strategy but `none` holds, has to wait now."""
    code = (
        SQL + "c.execute('SET lock_wait_timeout = 1'); c.execute('CREATE TABLE ledger.held_probe (id INT)');"
        " c.execute('DROP TABLE ledger.held_probe')"
    )
    done = guest.run([PYTHON, "-c", code])
    assert done.code == 0 or "(1205," in done.stderr, done.stderr
    return done.code != 0


def settle(guest: Guest, known: list[str]) -> None:
    guest.run(["cp", "/tmp/plain.toml", CONFIG]).check()
    assert not is_held(guest)
    check_clean_and_working(guest, known)


@pytest.mark.usefixtures("plain")
def test_the_hook_really_runs_under_the_lock(guest: Guest) -> None:
    hook(guest, "locked", "touch /tmp/reached; sleep 3", lock='deadline = "10s"')
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    assert is_held(guest)
    command.wait(600).check()
    assert not is_held(guest)


@pytest.mark.usefixtures("plain")
def test_zsnapdb_killed_under_the_lock(guest: Guest) -> None:
    known = backups(guest)
    hook(guest, "locked", "touch /tmp/reached; kill -KILL $PPID; sleep 60")
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    assert command.wait(600).code == 137
    guest.run(["sh", "-c", "pgrep -f '^/bin/sh /tmp/hook' | xargs -r kill -KILL"]).check()
    guest.run([PYTHON, "-c", WRITE], timeout=60).check()
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_zsnapdb_terminated_under_the_lock_lets_go_and_still_runs_the_after_hooks(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "touch /tmp/reached; sleep 60", lock='deadline = "30s"')
    guest.run(
        [
            "sh",
            "-c",
            (
                "printf '#!/bin/sh\\necho $ZSNAPDB_OUTCOME > /tmp/after\\n' > /tmp/undo; chmod +x /tmp/undo; rm -f"
                " /tmp/after"
            ),
        ]
    ).check()
    guest.run(
        ["sh", "-c", f'printf \'[[instance.main.hooks]]\\nwhen = "after"\\nrun = "/tmp/undo"\\n\' >> {CONFIG}']
    ).check()
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    command.signal(signal.SIGTERM)
    assert command.wait(600).code == 130
    assert not is_held(guest)
    assert guest.run(["cat", "/tmp/after"]).stdout == "failed\n"
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_zsnapdb_frozen_under_the_lock_loses_it_by_the_servers_own_clock(guest: Guest) -> None:
    known = backups(guest)
    hook(guest, "locked", "touch /tmp/reached; kill -STOP $PPID; exit 0", lock='deadline = "2s"')
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    began = time.monotonic()
    while is_held(guest):
        # The deadline, a second of wait_timeout behind it, and what two looks take.
        assert time.monotonic() - began < 8
    # zsnapdb goes on and finds that its lock was lost.
    guest.run(["sh", "-c", "pkill -CONT -f 'zsnapdb backup'"]).check()
    done = command.wait(600)
    assert done.code in (5, 10), done.stderr
    assert backups(guest) == known
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_the_connection_that_holds_the_lock_is_killed(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    query = "SELECT id FROM information_schema.processlist WHERE user = 'zsnapdb' AND id <> CONNECTION_ID()"
    kill = SQL + f'c.execute("{query}"); ids = [r[0] for r in c.fetchall()]; [c.execute(f"KILL {{i}}") for i in ids]'
    guest.run(["sh", "-c", f"cat > /tmp/kill.py <<'E'\n{kill}\nE"]).check()
    hook(guest, "locked", f"{PYTHON} /tmp/kill.py && touch /tmp/reached")
    done = guest.run(["zsnapdb", "backup"], timeout=600)
    assert done.code == 10, done.stderr
    assert "the lock was lost before the snapshot was proved" in done.stderr
    wait_for(guest, "/tmp/reached")
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_the_server_is_killed_under_the_lock(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "/checkout/tests/lab/inside/server kill; touch /tmp/reached")
    done = guest.run(["zsnapdb", "backup"], timeout=600)
    assert done.code in (5, 10), done.stderr
    assert "Traceback" not in done.stderr
    wait_for(guest, "/tmp/reached")
    assert snapshots(guest) == before
    guest.run(["/checkout/tests/lab/inside/server", "start"], timeout=600).check()
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_a_hook_that_hangs_is_ended_at_the_locks_deadline(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "touch /tmp/reached; trap '' TERM; sleep 600", lock='deadline = "2s"')
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    began = time.monotonic()
    while is_held(guest):
        assert time.monotonic() - began < 10
    done = command.wait(600)
    assert done.code == 12, done.stderr
    assert "hook /tmp/hook (locked) did not end within" in done.stderr
    assert (backups(guest), snapshots(guest)) == (known, before)
    assert guest.run(["pgrep", "-f", "^/bin/sh /tmp/hook"]).stdout == ""
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_a_hook_before_the_lock_that_fails_leaves_everything_as_it_was(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "before", "echo the application said no; exit 1")
    done = guest.run(["zsnapdb", "backup"], timeout=600)
    assert done.code == 12
    assert "the application said no" in done.stderr
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)


# A part of the pool on a file system that can be frozen: then no transaction group ends, and no snapshot, until it is
# thawed.
ADD_FREEZABLE = (
    "truncate -s 400M /tmp/device && mkfs.ext4 -q /tmp/device && mkdir -p /freezable && mount -o loop /tmp/device"
    " /freezable && truncate -s 256M /freezable/vdev && zpool add -f tank /freezable/vdev && zpool sync"
)
REMOVE_FREEZABLE = (
    "zpool remove tank /freezable/vdev && zpool wait -t remove tank && zpool sync && umount /freezable && rm"
    " /tmp/device"
)


@pytest.mark.usefixtures("plain")
def test_a_pool_too_slow_for_the_deadline_costs_the_snapshot_and_not_the_lock(guest: Guest) -> None:
    guest.run(["sh", "-c", ADD_FREEZABLE]).check()
    known, before = backups(guest), snapshots(guest)
    thaw = "setsid sh -c 'sleep 4; fsfreeze -u /freezable' </dev/null >/dev/null 2>&1 &"
    hook(guest, "locked", f"fsfreeze -f /freezable && touch /tmp/reached\n{thaw}", lock='deadline = "1s"')
    done = guest.run(["zsnapdb", "backup"], timeout=600)
    assert done.code == 10, done.stderr
    assert "was not made within lock.deadline = 1 s; the lock was let go" in done.stderr
    wait_for(guest, "/tmp/reached")
    assert (backups(guest), snapshots(guest)) == (known, before)
    guest.run(["sh", "-c", REMOVE_FREEZABLE]).check()
    settle(guest, known)
