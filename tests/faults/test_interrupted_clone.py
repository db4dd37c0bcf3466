"""A power cut while clones are made, reset and destroyed.

Doctor names everything half made, one reap removes it, complete clones start again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.documents import check_printed
from tests.lab.guest import Guest

from .in_guest import QUICK, speed_up

pytestmark = pytest.mark.any_server

PYTHON = "/opt/venv/bin/python"
PREPARE = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger;"
    " ledger.set_up('/run/mysqld/mysqld.sock')"
)
STALLS = {
    "made": (["create", "main", "--name", "made"], 2),
    "reset": (["reset", "reset"], 3),
    "gone": (["destroy", "gone"], 3),
}
"""What is under way when the power is cut, and at which changing `zfs` command it stands."""


def document(guest: Guest, *words: str) -> dict[str, Any]:
    printed = guest.run([QUICK, *words, "--json"]).stdout
    check_printed((*words, "--json"), printed)
    parsed: dict[str, Any] = json.loads(printed)
    return parsed


def named_by_doctor(guest: Guest) -> list[str]:
    return [f["detail"] for d in document(guest, "doctor")["instances"] for f in d["findings"] if f["what"] == "clones"]


def client(guest: Guest, name: str, statement: str) -> str:
    return guest.run([QUICK, "clone", "connect", name, "-N", "-e", statement]).check().stdout.strip()


def test_a_power_cut_in_create_reset_and_destroy_leaves_nothing_that_doctor_does_not_name_and_reap_does_not_clear(
    guest: Guest,
) -> None:
    guest.run([PYTHON, "-c", PREPARE]).check()
    speed_up(guest)
    guest.run([QUICK, "backup"]).check()
    for name in ("reset", "gone"):
        guest.run([QUICK, "clone", "create", "main", "--name", name]).check()
    client(guest, "reset", "CREATE TABLE ledger.mine (id INT); INSERT INTO ledger.mine VALUES (7)")
    for name, (words, step) in STALLS.items():
        shim = f"/tmp/{name}"
        guest.run(
            [
                "sh",
                "-c",
                (
                    f"mkdir -p {shim}/bin && cp /checkout/tests/lab/inside/zfs-shim {shim}/bin/zfs && echo {step} stall"
                    f" > {shim}/at"
                ),
            ]
        ).check()
        guest.spawn(["sh", "-c", f"PATH={shim}/bin:$PATH exec zsnapdb clone {' '.join(words)}"])
        guest.run(["sh", "-c", f"until [ -e {shim}/reached ]; do sleep 0.1; done"], timeout=600).check()
    assert named_by_doctor(guest) == [], "other processes work on them: no leaks yet"
    guest.power_cut()
    guest.start()
    speed_up(guest)
    named = named_by_doctor(guest)
    assert len(named) == 3, named
    assert all(any(text.endswith(f": {name}") for text in named) for name in STALLS), named
    guest.run([QUICK, "reap"]).check()
    assert named_by_doctor(guest) == []
    (left,) = document(guest, "clone", "list")["clones"]
    assert (left["name"], left["phase"], left["pid"]) == ("reset", "ready", None)
    guest.run([QUICK, "clone", "start", "reset"]).check()
    assert client(guest, "reset", "SELECT id FROM ledger.mine") == "7", "an interrupted reset has not removed the data"
    guest.run([QUICK, "clone", "destroy", "reset"]).check()
    assert guest.run(["zfs", "list", "-H", "-r", "-o", "name", "tank/zsnapdb/clones"]).check().stdout.split() == [
        "tank/zsnapdb/clones"
    ]
    guest.run([QUICK, "clone", "create", "main", "--name", "made"]).check()
