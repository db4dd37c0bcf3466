"""A clone keeps its port and password whatever its server is, and is reset by a swap for a clone that waits."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from .in_guest import Lab, ask, end_process, everything

pytestmark = pytest.mark.usefixtures("first")

FOLDER = Path("/run/lab-haproxy")
FILE = FOLDER / "haproxy.cfg"


class HAProxy:
    """An instance of its own, started by hand as the unit of the examples does."""

    def __init__(self, lab: Lab, config: Path) -> None:
        self.lab, self.config = lab, config
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        FOLDER.mkdir(exist_ok=True, mode=0o755)
        assert self.lab.zsnapdb("clone", "addresses", "--haproxy", str(FILE), config=self.config).code == 0
        self.process = subprocess.Popen(["haproxy", "-db", "-f", str(FILE)])
        until = time.monotonic() + 30
        while self.lab.zsnapdb("clone", "addresses", "--json", config=self.config).json["error"] is not None:
            assert self.process.poll() is None
            assert time.monotonic() < until

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def config(lab: Lab) -> Path:
    kept = f'[clones.address]\nsocket = "{FOLDER}/admin.sock"\nlast_port = 23175\n\n'
    return lab.changed(("[repository.s3]\n", f"[instance.main.pool]\nsize = 2\n\n{kept}[repository.s3]\n"))


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
    assert (planned["way"], planned["reason"]) == ("swap", "a table is defined otherwise"), planned
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
    haproxy.start()
    assert zsnapdb("clone", "connect", "dev", "--dsn")["port"] == kept
    with reach(made, kept) as here:
        assert ask(here, "SELECT COUNT(*) FROM ledger.accounts WHERE id = 1") == [(1,)]
    assert [one["name"] for one in zsnapdb("clone", "destroy", "dev")["clones"]] == ["dev"]
    assert zsnapdb("clone", "addresses") == {**zsnapdb("clone", "addresses"), "ports": [], "error": None}
    outcomes = zsnapdb("reap")
    assert [one["name"] for one in zsnapdb("clone", "list")["clones"]] == [], outcomes
    assert everything() == before
