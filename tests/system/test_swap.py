"""A clone keeps its port and password whatever its server is, and is reset by a swap for a clone that waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.unit.support.slow_peer import Manner, slow_peer

from .haproxy import FOLDER, KEPT, HAProxy
from .in_guest import Lab, ask, end_process, everything

pytestmark = pytest.mark.usefixtures("first")
SOCKET_OF_HAPROXY = FOLDER / "admin.sock"


@pytest.fixture
def config(lab: Lab) -> Path:
    return lab.changed(("[repository.s3]\n", f"[instance.main.pool]\nsize = 2\n\n{KEPT}[repository.s3]\n"))


@pytest.fixture
def haproxy(lab: Lab, config: Path) -> Iterator[HAProxy]:
    running = HAProxy(lab, config)
    yield running
    running.end()


def reach(made: dict[str, Any], port: int) -> pymysql.Connection:
    return pymysql.connect(
        host="127.0.0.1", port=port, user=made["user"], password=made["password"], autocommit=True, read_timeout=60
    )


def test_a_clone_keeps_its_port_and_is_swapped_where_its_rows_cannot_be_undone(
    lab: Lab, config: Path, haproxy: HAProxy
) -> None:
    before = everything()

    def zsnapdb(*words: str) -> dict[str, Any]:
        done = lab.zsnapdb(*words, "--json", config=config)
        assert done.code == 0, done.stderr
        return done.json

    # HAProxy is not there yet: the port of the server is said.
    assert len(zsnapdb("clone", "pool", "main")["made"]) == 2
    made = zsnapdb("clone", "create", "main", "--name", "dev", "--owner", "ada")
    clone, kept = made["clone"], made["clone"]["kept_port"]
    assert (clone["port"], clone["port"] != kept, kept) == (clone["server_port"], True, 23170)
    assert "HAProxy does not answer" in lab.zsnapdb("doctor", "main", config=config).stdout
    with reach(made, clone["port"]) as here:
        ask(here, "CREATE TABLE ledger.planted (id INT)")
    planned = zsnapdb("clone", "reset", "dev", "--plan")
    assert (planned["way"], f"HAProxy does not listen at its port {kept}" in planned["reason"]) == ("replace", True)

    haproxy.start()
    assert zsnapdb("clone", "connect", "dev", "--dsn")["port"] == kept
    assert "HAProxy leads 1 port to clones" in lab.zsnapdb("doctor", "main", config=config).stdout
    planned = zsnapdb("clone", "reset", "dev", "--plan")
    assert (planned["way"], planned["reason"]) == ("swap", "the definition of a table differs"), planned
    with reach(made, kept) as old, reach(made, kept) as locker:
        ask(locker, "LOCK TABLES ledger.journal WRITE")
        assert ask(old, "SHOW TABLES FROM ledger LIKE 'planted'")
        done = zsnapdb("clone", "reset", "dev")
        print(f"{lab.flavour}: reset by swap in {done['swap_seconds']} s")
        assert (done["way"], done["clone"]["port"], done["clone"]["id"]) == ("swap", kept, clone["id"])
        for session in (old, locker):
            with pytest.raises(pymysql.MySQLError):
                ask(session, "SELECT 1")
    assert planned["slot"] != clone["id"]
    same = ("name", "id", "owner", "expires", "created", "kept_port", "backup_id", "requested", "rights")
    assert [done["clone"][name] for name in same] == [clone[name] for name in same]
    with reach(made, kept) as here:
        assert ask(here, "SELECT @@port") == [(done["clone"]["server_port"],)]
        assert ask(here, "SHOW TABLES FROM ledger LIKE 'planted'") == []
        ask(here, "DELETE FROM ledger.accounts WHERE id = 1")
    # What took the place is a clone as any other: its rows are undone, its server starts again.
    undone = zsnapdb("clone", "reset", "dev")
    assert (undone["way"], undone["undone"]) == ("undo", 1)
    end_process(undone["clone"]["pid"])
    assert zsnapdb("clone", "start", "dev")["clone"]["port"] == kept
    with reach(made, kept) as here:
        assert ask(here, "SELECT COUNT(*) FROM ledger.accounts WHERE id = 1") == [(1,)]

    left = {one["name"]: one for one in zsnapdb("clone", "list")["clones"]}
    assert sorted(left) == sorted(["dev", planned["slot"]])
    assert left[planned["slot"]]["owner"] == "the pool"
    assert lab.zsnapdb("clone", "connect", planned["slot"], "--dsn", config=config).code == 4, "it is nobody's"
    # No clone waits any more: the data is replaced, behind the same port.
    replaced = zsnapdb("clone", "reset", "dev")
    assert (replaced["way"], replaced["clone"]["port"]) == ("replace", kept)
    haproxy.end()
    assert zsnapdb("clone", "connect", "dev", "--dsn")["port"] == replaced["clone"]["server_port"]
    SOCKET_OF_HAPROXY.unlink()
    with slow_peer(Manner.DRIPS, at=SOCKET_OF_HAPROXY):
        # No lock of a clone waits for an answer that never ends.
        began = time.monotonic()
        assert zsnapdb("clone", "connect", "dev", "--dsn")["port"] == replaced["clone"]["server_port"]
        assert zsnapdb("clone", "stop", "dev")["clone"]["pid"] is None
        assert zsnapdb("clone", "start", "dev")["clone"]["pid"]
        assert time.monotonic() - began < 120
    SOCKET_OF_HAPROXY.unlink()
    haproxy.start()
    assert zsnapdb("clone", "connect", "dev", "--dsn")["port"] == kept
    with reach(made, kept) as here:
        assert ask(here, "SELECT COUNT(*) FROM ledger.accounts WHERE id = 1") == [(1,)]
    assert len(zsnapdb("clone", "destroy", "dev")["clones"]) == 1
    assert [zsnapdb("clone", "addresses")[name] for name in ("ports", "error")] == [[], None]
    outcomes = zsnapdb("reap")
    assert [one["name"] for one in zsnapdb("clone", "list")["clones"]] == [], outcomes
    assert everything() == before


DIES = """
import os, signal, sys
from pathlib import Path
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import kept_ports, reset

def dies(*_words, **_named):
    os.kill(os.getpid(), signal.SIGKILL)

make_ready, set_together, calls = reset._make_ready, reset.datasets.set_together, []

def made_ready(*words):
    make_ready(*words)
    dies()

def second_dies(values):
    calls.append(values)
    return set_together(values) if len(calls) == 1 else dies()

place, name, work = {
    "given the password": (reset, "_make_ready", made_ready),
    "the server is ended": (reset.datasets, "set_together", second_dies),
    "exchanged": (kept_ports, "route_port", dies),
}[sys.argv[1]]
assert hasattr(place, name)
setattr(place, name, work)
reset.reset(load(Path(sys.argv[2])), THIS_HOST, "dev", None, SILENT)
"""
"""A reset that is killed at one step of a swap."""


@pytest.mark.any_server
def test_a_swap_that_is_killed_leaves_one_clone_with_one_owner_and_the_same_command_ends_it(
    lab: Lab, haproxy: HAProxy
) -> None:
    before = everything()
    config = lab.changed(("[repository.s3]\n", f"[instance.main.pool]\nsize = 4\n\n{KEPT}[repository.s3]\n"))

    def zsnapdb(*words: str) -> dict[str, Any]:
        done = lab.zsnapdb(*words, "--json", config=config)
        assert done.code == 0, done.stderr
        return done.json

    haproxy.start()
    made = zsnapdb("clone", "create", "main", "--name", "dev", "--owner", "ada")
    assert made["clone"]["port"] == made["clone"]["kept_port"], "HAProxy was there before the clone"
    kept = made["clone"]["kept_port"]
    zsnapdb("clone", "pool", "main")
    ways = []
    for step in ("exchanged", "the server is ended", "given the password"):
        with reach(made, kept) as here:
            ask(here, "CREATE TABLE ledger.planted (id INT)")
        words = (sys.executable, "-c", DIES, step, str(config))
        assert subprocess.run(words, timeout=300, check=False).returncode == -signal.SIGKILL, step
        clones = zsnapdb("clone", "list")["clones"]
        assert [one["id"] for one in clones if one["owner"] == "ada"] == ["dev"], step
        assert len({one["id"] for one in clones}) == len({one["name"] for one in clones}) == 5, step
        # Who has the password of the clone gets into no clone that somebody else could get.
        for one in clones:
            if one["waits"]:
                with pytest.raises(pymysql.MySQLError):
                    reach(made, one["server_port"])
        again = zsnapdb("clone", "reset", "dev")
        ways.append(again["way"])
        with reach(made, kept) as here:
            assert ask(here, "SHOW TABLES FROM ledger LIKE 'planted'") == [], step
    # After the exchange nothing was left to do but to tell HAProxy; after the last one no clone waited.
    assert ways == ["undo", "swap", "replace"]
    zsnapdb("reap")
    assert [one["id"] for one in zsnapdb("clone", "list")["clones"]] == ["dev"]
    zsnapdb("clone", "destroy", "dev")
    assert everything() == before
