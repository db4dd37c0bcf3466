"""Clones that wait in a pool are handed out at once, each to one owner, and only if they are good."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pymysql
import pytest

from zsnapdb.config.settings import load
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, lifecycle, pool
from zsnapdb.jobs.clone.request import CloneRequest

from .in_guest import SOCKET, Lab, ask, connect, end_process, everything

pytestmark = pytest.mark.usefixtures("first")


def pooled(lab: Lab, size: int) -> Path:
    return lab.changed(("[repository.s3]\n", f"[instance.main.pool]\nsize = {size}\n\n[repository.s3]\n"))


def listed(lab: Lab) -> dict[str, dict[str, Any]]:
    return {clone["name"]: clone for clone in lab.zsnapdb("clone", "list", "--json").json["clones"]}


# What is handed out is an ordinary clone: how its accounts are made is tested on both.
@pytest.mark.any_server
def test_a_clone_of_the_pool_has_its_owner_at_once_and_lives_as_any_other(lab: Lab) -> None:
    before, config = everything(), pooled(lab, 3)
    assert lab.zsnapdb("clone", "pool", "main").code == 3, "the instance has no pool"
    a_pool_that_the_host_has_no_space_for_is_refused(lab)
    assert lab.zsnapdb("clone", "pool", "main", "--plan", "--json", config=config).json["makes"] == 3
    filled = lab.zsnapdb("clone", "pool", "main", "--json", config=config).json
    assert len(filled["made"]) == 3
    assert "3 clones wait in the pool" in lab.zsnapdb("doctor", "main", config=config).stdout
    again = lab.zsnapdb("clone", "pool", "main", "--json", config=config).json
    assert (again["made"], sorted(again["waiting"])) == ([], sorted(filled["made"]))
    assert all((clone["owner"], clone["waits"]) == ("the pool", True) for clone in listed(lab).values())
    assert lab.zsnapdb("clone", "connect", filled["made"][0], "--dsn").code == 4, "it is nobody's yet"
    assert lab.zsnapdb("clone", "create", "main", "--name", "No", config=config).code == 2

    create = ("clone", "create", "main", "--name", "mine", "--owner", "ada", "--ttl", "1h", "--json")
    planned = lab.zsnapdb(*create, "--plan", config=config).json
    assert (planned["name"], planned["slot"]["waits"]) == ("mine", True)
    for around in (("--fresh",), ("--binary", lab.server)):
        assert "slot" not in lab.zsnapdb("clone", "create", "main", *around, "--plan", "--json", config=config).json
    # The instance is another server by now.
    named = "[repository.s3]\n", "[instance.main.pool]\nsize = 3\n\n[repository.s3]\n"
    elsewhere = lab.changed(named, (SOCKET, "/run/mysqld/other.sock"))
    assert "slot" not in lab.zsnapdb(*create, "--plan", config=elsewhere).json
    assert planned["slot"]["id"] in filled["made"]
    began = time.monotonic()
    made = lab.zsnapdb(*create, config=config).json
    took = time.monotonic() - began
    print(f"{lab.flavour}: out of the pool in {took:.2f} s, by itself {made['seconds']['start']:.2f} s")
    clone = made["clone"]
    assert (made["of_pool"], clone["name"], clone["owner"], clone["waits"]) == (True, "mine", "ada", False)
    with connect(made) as here:
        assert ask(here, "SELECT @@port") == [(clone["port"],)]
        ask(here, "CREATE TABLE ledger.mine (id INT)")
    # Nobody else has the name, and everything on the clone works by it.
    assert lab.zsnapdb(*create, config=config).code == 8
    assert lab.zsnapdb("clone", "create", "main", "--fresh", "--name", "mine", config=config).code == 8
    assert lab.zsnapdb("clone", "extend", "mine", "--ttl", "2h").code == 0
    assert lab.zsnapdb("clone", "commit", "mine", "--json").json["clone"] == "mine"
    reset = lab.zsnapdb("clone", "reset", "mine", "--json").json["clone"]
    assert (reset["name"], reset["id"], reset["port"]) == ("mine", clone["id"], clone["port"])
    # The same address and the same password, on the first data.
    with pymysql.connect(host="127.0.0.1", port=reset["port"], user=made["user"], password=made["password"]) as here:
        assert ask(here, "SHOW TABLES FROM ledger LIKE 'mine'") == []
    assert lab.zsnapdb("clone", "rename", "mine", "ours", "--json").json["clone"]["name"] == "ours"
    assert lab.zsnapdb("clone", "rename", "ours", next(name for name in listed(lab) if name != "ours")).code == 8
    assert (lab.zsnapdb("clone", "rename", "ours", "../x").code, lab.zsnapdb("clone", "show", "mine").code) == (2, 2)
    assert lab.zsnapdb("clone", "show", clone["id"], "--json").json["clone"]["name"] == "ours"
    assert lab.zsnapdb("clone", "destroy", "ours").code == 0

    a_slot_without_a_server_is_dropped_and_one_that_was_used(lab, config)
    of_two_who_ask_for_the_last_slot_one_gets_it(lab, config)
    for name in listed(lab):
        assert lab.zsnapdb("clone", "destroy", name).code == 0
    assert everything() == before


def a_pool_that_the_host_has_no_space_for_is_refused(lab: Lab) -> None:
    section = '[instance.main.pool]\nsize = 2\n\n[clones]\nfree_floor = "1TiB"\n\n[repository.s3]\n'
    config = lab.changed(("[repository.s3]\n", section))
    refused = lab.zsnapdb("config", "check", config=config)
    assert (refused.code, "a pool of 2 needs at least 30.0 MiB more of space" in refused.stderr) == (3, True), refused
    short = lab.zsnapdb("clone", "pool", "main", "--plan", "--json", config=config).json
    assert (short["makes"], "clones may write 0 B more" in short["short"]) == (0, True), short


def a_slot_without_a_server_is_dropped_and_one_that_was_used(lab: Lab, config: Path) -> None:
    """The server of one slot is killed, the other was used: nobody gets them, and the next filling makes them anew."""
    dead, used = listed(lab).values()
    end_process(dead["pid"])
    assert "1 of 3 clones wait in the pool" in lab.zsnapdb("doctor", "main", config=config).stdout
    settings = load(config)
    with lifecycle.session(catalogue.find(settings, THIS_HOST, used["id"])) as opened:
        opened.query("CREATE TABLE ledger.used (id INT)")
    assert pool.hand_out(settings, Instance.of(settings, "main"), CloneRequest("ada")) is None
    assert listed(lab)[used["name"]]["waits"] is False
    assert lab.zsnapdb("clone", "connect", used["name"], "--dsn").code == 4, "nobody gets it any more"
    planned = lab.zsnapdb("clone", "create", "main", "--plan", "--json", config=config).json
    assert "slot" not in planned
    one = pooled(lab, 1)
    filled = lab.zsnapdb("clone", "pool", "main", "--json", config=one).json
    reasons = {gone["name"]: gone["reason"] for gone in filled["dropped"]}
    assert reasons == {
        dead["id"]: "its server does not run",
        used["id"]: "it was refused when it was to be handed out",
    }
    assert len(filled["made"]) == 1


def of_two_who_ask_for_the_last_slot_one_gets_it(lab: Lab, config: Path) -> None:
    done: dict[str, subprocess.CompletedProcess[str]] = {}

    def ask_for(name: str) -> None:
        words = ("zsnapdb", "clone", "create", "main", "--name", name, "--config", str(config), "--json")
        done[name] = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)

    threads = [threading.Thread(target=ask_for, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ended.returncode for ended in done.values()] == [0, 0], [ended.stderr for ended in done.values()]
    of_pool = ['"of_pool": true' in ended.stdout for ended in done.values()]
    assert sorted(of_pool) == [False, True]
    clones = listed(lab)
    assert sorted(clones) == ["left", "right"]
    assert len({clone["port"] for clone in clones.values()}) == 2
