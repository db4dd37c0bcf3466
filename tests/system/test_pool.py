"""Clones that wait in a pool are handed out at once, each to one owner, and only if they are good."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pymysql
import pytest

from .in_guest import Lab, ask, connect, end_process, everything

pytestmark = pytest.mark.usefixtures("first")


def pooled(lab: Lab, size: int) -> Path:
    return lab.changed(("[repository.s3]\n", f"[instance.main.pool]\nsize = {size}\n\n[repository.s3]\n"))


def listed(lab: Lab) -> dict[str, dict[str, Any]]:
    return {clone["name"]: clone for clone in lab.zsnapdb("clone", "list", "--json").json["clones"]}


# What is handed out is an ordinary clone: how its accounts are made is tested on both.
@pytest.mark.any_server
def test_a_clone_of_the_pool_has_its_owner_at_once_and_lives_as_any_other(lab: Lab) -> None:
    before, config = everything(), pooled(lab, 2)
    assert lab.zsnapdb("clone", "pool", "main").code == 3, "the instance has no pool"
    assert lab.zsnapdb("clone", "pool", "main", "--plan", "--json", config=config).json["makes"] == 2
    filled = lab.zsnapdb("clone", "pool", "main", "--json", config=config).json
    assert len(filled["made"]) == 2
    assert "2 clones wait in the pool" in lab.zsnapdb("doctor", "main", config=config).stdout
    again = lab.zsnapdb("clone", "pool", "main", "--json", config=config).json
    assert (again["made"], sorted(again["waiting"])) == ([], sorted(filled["made"]))
    assert all((clone["owner"], clone["waits"]) == ("the pool", True) for clone in listed(lab).values())
    assert lab.zsnapdb("clone", "connect", filled["made"][0], "--dsn").code == 4, "it is nobody's yet"
    assert lab.zsnapdb("clone", "create", "main", "--name", "No", config=config).code == 2

    create = ("clone", "create", "main", "--name", "mine", "--owner", "ada", "--ttl", "1h", "--json")
    planned = lab.zsnapdb(*create, "--plan", config=config).json
    assert (planned["name"], planned["slot"]["waits"]) == ("mine", True)
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

    a_slot_without_a_server_is_dropped(lab, config)
    of_two_who_ask_for_the_last_slot_one_gets_it(lab, config)
    for name in listed(lab):
        assert lab.zsnapdb("clone", "destroy", name).code == 0
    assert everything() == before


def a_slot_without_a_server_is_dropped(lab: Lab, config: Path) -> None:
    """The server of the slot is killed: nobody gets it, and the next filling makes it anew."""
    (slot,) = listed(lab).values()
    end_process(slot["pid"])
    assert "0 of 2 clones wait in the pool" in lab.zsnapdb("doctor", "main", config=config).stdout
    planned = lab.zsnapdb("clone", "create", "main", "--plan", "--json", config=config).json
    assert "slot" not in planned
    one = pooled(lab, 1)
    filled = lab.zsnapdb("clone", "pool", "main", "--json", config=one).json
    assert [gone["name"] for gone in filled["dropped"]] == [slot["id"]]
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
