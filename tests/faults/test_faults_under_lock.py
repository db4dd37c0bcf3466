"""Whatever dies while the lock is held: no lock survives, no incomplete backup is listed, the next run works."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.lab.guest import Guest, Lab

from .in_guest import PREPARE, PYTHON, QUICK, WRITE, backups, check_clean_and_working, snapshots, speed_up

CONFIG = "/etc/zsnapdb/zsnapdb.toml"
SQL = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; "
    "c = ledger.connect('/run/mysqld/mysqld.sock', 'root', '', None).cursor(); "
)
PROBE = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; "
    "c = ledger.connect('/run/mysqld/mysqld.sock', 'root', '', None, read_timeout=30).cursor(); "
    "c.execute('SET lock_wait_timeout = 1'); c.execute('DROP TABLE ledger.not_there')"
)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def guest(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, request.param) as booted:
        booted.run([PYTHON, "-c", PREPARE]).check()
        speed_up(booted)
        booted.run([QUICK, "backup"]).check()
        yield booted


@pytest.fixture
def plain(guest: Guest) -> Iterator[None]:
    """The configuration as it was, before and after the test."""
    guest.run(["cp", CONFIG, "/tmp/plain.toml"]).check()
    yield
    guest.run(["cp", "/tmp/plain.toml", CONFIG]).check()


def sql(guest: Guest, *statements: str) -> None:
    guest.run([PYTHON, "-c", SQL + "; ".join(f"c.execute({statement!r})" for statement in statements)]).check()


def hook(guest: Guest, when: str, script: str, timeout: str = "120s", lock: str = 'deadline = "60s"') -> None:
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
    """Whether DDL has to wait for a lock now. Every strategy but `none` blocks DDL.

    While the lock is held the server answers 1205 after the second of lock_wait_timeout. Once the lock is free the
    statement fails with 1051, or waits for a frozen pool (MariaDB writes its DDL log): then no answer comes.
    """
    done = guest.run([PYTHON, "-c", PROBE])
    assert any(answer in done.stderr for answer in ("(1205,", "(1051,", "read operation timed out")), (
        done.code,
        done.stderr,
    )
    return "(1205," in done.stderr


def wait_until_free(guest: Guest) -> None:
    """Wait until DDL no longer waits.

    The limit is far above any deadline of these tests, and far below the life of a lock that nobody ends.
    """
    give_up = time.monotonic() + 120
    while is_held(guest):
        assert time.monotonic() < give_up, "the lock outlived its deadline"


def settle(guest: Guest, known: list[str]) -> None:
    guest.run(["cp", "/tmp/plain.toml", CONFIG]).check()
    sql(guest, "CREATE TABLE ledger.held_probe (id INT)", "DROP TABLE ledger.held_probe")
    check_clean_and_working(guest, known)


@pytest.mark.usefixtures("plain")
def test_the_hook_really_runs_under_the_lock(guest: Guest) -> None:
    hook(guest, "locked", "rm -f /tmp/go; touch /tmp/reached; until [ -e /tmp/go ]; do sleep 0.05; done")
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    assert is_held(guest)
    guest.run(["touch", "/tmp/go"]).check()
    command.wait(600).check()
    assert not is_held(guest)


@pytest.mark.usefixtures("plain")
def test_zsnapdb_killed_under_the_lock(guest: Guest) -> None:
    known = backups(guest)
    hook(guest, "locked", "touch /tmp/reached; kill -KILL $PPID; sleep 600")
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    assert command.wait(600).code == 137
    guest.run(["sh", "-c", "pgrep -f '^/bin/sh /tmp/hook' | xargs -r kill -KILL"]).check()
    guest.run([PYTHON, "-c", WRITE]).check()
    settle(guest, known)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="terminated"),
        pytest.param(signal.SIGHUP, id="session-lost", marks=pytest.mark.any_server),
    ],
)
@pytest.mark.usefixtures("plain")
def test_zsnapdb_ended_under_the_lock_lets_go_and_still_runs_the_last_hooks(
    guest: Guest, number: signal.Signals
) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "touch /tmp/reached; sleep 600")
    note = "printf '#!/bin/sh\\necho $ZSNAPDB_OUTCOME $ZSNAPDB_STATUS > /tmp/at-$ZSNAPDB_HOOK\\n' > /tmp/undo"
    guest.run(["sh", "-c", f"{note}; chmod +x /tmp/undo; rm -f /tmp/at-*"]).check()
    for when in ("after", "done"):
        table = f'[[instance.main.hooks]]\\nwhen = "{when}"\\nrun = "/tmp/undo"\\n'
        guest.run(["sh", "-c", f"printf '{table}' >> {CONFIG}"]).check()
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    command.signal(number)
    assert command.wait(600).code == 130
    assert not is_held(guest)
    assert guest.run(["cat", "/tmp/at-after", "/tmp/at-done"]).stdout == "failed\nfailed 130\n"
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_zsnapdb_frozen_under_the_lock_loses_it_by_the_servers_own_clock(guest: Guest) -> None:
    known = backups(guest)
    hook(guest, "locked", "kill -STOP $PPID; touch /tmp/reached", lock='deadline = "5s"')
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    wait_until_free(guest)
    # zsnapdb continues, and notices that its lock was lost.
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
    done = guest.run([QUICK, "backup"], timeout=600)
    assert done.code == 10, done.stderr
    assert "the lock was lost before the snapshot was confirmed" in done.stderr
    wait_for(guest, "/tmp/reached")
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)


@pytest.mark.usefixtures("plain")
def test_the_server_is_killed_under_the_lock(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "/checkout/tests/lab/inside/server kill; touch /tmp/reached")
    done = guest.run([QUICK, "backup"], timeout=600)
    assert done.code in (5, 10), done.stderr
    assert "Traceback" not in done.stderr
    wait_for(guest, "/tmp/reached")
    assert snapshots(guest) == before
    guest.run(["/checkout/tests/lab/inside/server", "start"], timeout=600).check()
    settle(guest, known)


# What ends is the hook, by the clock of zsnapdb, which lets go of the lock as after a signal: that is tested on both.
@pytest.mark.any_server
@pytest.mark.usefixtures("plain")
def test_a_hook_that_hangs_is_ended_at_the_locks_deadline(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "trap '' TERM; touch /tmp/reached; sleep 600", timeout="600s", lock='deadline = "5s"')
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    wait_until_free(guest)
    done = command.wait(600)
    assert done.code == 12, done.stderr
    assert "hook /tmp/hook (locked) did not end within" in done.stderr
    assert (backups(guest), snapshots(guest)) == (known, before)
    assert guest.run(["pgrep", "-f", "^/bin/sh /tmp/hook"]).stdout == ""
    settle(guest, known)


@pytest.mark.any_server
@pytest.mark.usefixtures("plain")
def test_a_hook_before_the_lock_that_fails_leaves_everything_as_it_was(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "before", "echo the application said no; exit 1")
    done = guest.run([QUICK, "backup"], timeout=600)
    assert done.code == 12
    assert "the application said no" in done.stderr
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)


# A part of the pool is on a file system that can be frozen. Then no transaction group and no snapshot ends until the
# file system is thawed.
ADD_FREEZABLE = (
    "truncate -s 400M /tmp/device && mkfs.ext4 -q /tmp/device && mkdir -p /freezable && mount -o loop /tmp/device"
    " /freezable && truncate -s 256M /freezable/vdev && zpool add -f tank /freezable/vdev && zpool sync"
)
REMOVE_FREEZABLE = (
    "zpool remove tank /freezable/vdev && zpool wait -t remove tank && zpool sync && until umount /freezable; do sleep"
    " 0.1; done && rm /tmp/device"
)
"""The pool reports a disk as removed some moments before the pool closes the disk."""


@pytest.fixture
def freezable(guest: Guest) -> Iterator[None]:
    """A pool that stops while /freezable is frozen. Afterwards /freezable is thawed and removed."""
    guest.run(["sh", "-c", ADD_FREEZABLE]).check()
    yield
    guest.run(["fsfreeze", "-u", "/freezable"])
    guest.run(["sh", "-c", REMOVE_FREEZABLE], timeout=600).check()


# What is slow is the pool, and the clock is that of zsnapdb.
@pytest.mark.any_server
@pytest.mark.usefixtures("plain", "freezable")
def test_a_pool_too_slow_for_the_deadline_costs_the_snapshot_and_not_the_lock(guest: Guest) -> None:
    known, before = backups(guest), snapshots(guest)
    hook(guest, "locked", "fsfreeze -f /freezable && touch /tmp/reached", lock='deadline = "5s"')
    command = guest.spawn(["zsnapdb", "backup"])
    wait_for(guest, "/tmp/reached")
    wait_until_free(guest)
    assert not command.done.is_set(), "it waits for the snapshots that the kernel still makes"
    guest.run(["fsfreeze", "-u", "/freezable"]).check()
    done = command.wait(600)
    assert done.code == 10, done.stderr
    assert "was not made within lock.deadline = 5 s; the lock was released" in done.stderr
    assert (backups(guest), snapshots(guest)) == (known, before)
    settle(guest, known)
