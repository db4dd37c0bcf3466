"""What the archive and the status say around a rewind, and of a server that is restarted under another server_id.

The name of the file puts it behind the others: afterwards the archive has a history that was left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .in_guest import SERVER, Lab
from .rewinding import INCLUDED, accident, controlled, to_the_first_server

pytestmark = pytest.mark.usefixtures("first")


@pytest.fixture
def control(lab: Lab) -> Iterator[tuple[tuple[str, str], ...]]:
    """Say how the guest's server is stopped and started. Afterwards the first server is in its place again."""
    with controlled(lab) as replacements:
        yield replacements


def server_id(lab: Lab) -> int:
    return int(lab.sql("SELECT @@server_id")[0][0])


def test_a_restart_under_another_server_id_is_no_new_history(
    lab: Lab, first: dict[str, Any], control: tuple[tuple[str, str], ...]
) -> None:
    """As after a rewind that was given up. What the server wrote last under the old one is archived afterwards."""
    assert lab.zsnapdb("backup", "main").code == 0
    lab.sql("CREATE DATABASE IF NOT EXISTS renumbered")
    lab.sql("CREATE OR REPLACE VIEW renumbered.one AS SELECT 1")
    assert lab.zsnapdb("binlog", "archive", "--once").code == 0
    old_id = server_id(lab)
    for number in (old_id + 1000, old_id):
        lab.sql(f"CREATE OR REPLACE VIEW renumbered.one AS SELECT {number}")
        subprocess.run([SERVER, "stop"], check=True)
        (INCLUDED / "zsnapdb.cnf").write_text(
            f"[{'mysqld' if lab.flavour == 'mysql' else 'mariadbd'}]\nserver_id={number}\n"
        )
        subprocess.run([SERVER, "start"], check=True)
        assert server_id(lab) == number
        lab.sql(f"CREATE OR REPLACE VIEW renumbered.one AS SELECT 10 + {number}")
        again = lab.zsnapdb("binlog", "archive", "--once", "--json").json
        assert (again["begun"], again["gaps"], again["unprotected"]) == (None, [], None), again
        assert json.loads(lab.zsnapdb("status", "main", "--json").stdout)["unprotected"] is None


def archiver_of(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the archiver. What it says goes to the file."""
    with log.open("wb") as out:
        environment = {**os.environ, "ZSNAPDB_CONFIG": str(config)}
        return subprocess.Popen(["zsnapdb", "binlog", "archive", "main"], stdout=out, stderr=out, env=environment)


SLOW_START = """#!/bin/sh
# Starts the server some rounds of the archiver later, as on a host that is busy.
sleep 4
exec "$@"
"""


def check_that_what_is_lost_is_said_and_archived(lab: Lab, done: dict[str, Any], config: Path) -> None:
    """The DELETE and CREATE TABLE of the accident, and five rows. The printed command plans their restore."""
    lost, archived = done["left_out"], done["archived"]
    assert (lost["transactions"], lost["at_least"], lost["statements"], lost["unknown"]) == (7, False, 1, [])
    assert {one["table"]: (one["inserted"], one["deleted"]) for one in lost["tables"]} == {
        "lines": (0, 3),
        "after_it": (5, 0),
    }
    assert archived["missing"] == ""
    words = ("restore", "main", "--to", "latest", "--history", archived["history"], "--plan", "--json")
    planned = lab.zsnapdb(*words, config=config)
    assert planned.code == 0, planned.stderr
    last = planned.json["point"]["last"]
    # The archiver that runs may also have stored the event with which the server stopped.
    assert (last["file"], last["end"] >= archived["offset"]) == (archived["file"], True)
    assert last["committed"][:19] == lost["last_commit"][:19]


def check_that_nothing_is_unprotected_before_the_first_commit(lab: Lab, config: Path) -> None:
    """The transactions that were taken back are in the archive, but they are not later than the new history."""
    deadline = time.monotonic() + 60
    while json.loads(lab.zsnapdb("status", "main", "--json", config=config).stdout)["unprotected"] is not None:
        assert time.monotonic() < deadline
        time.sleep(1)


def test_an_archiver_that_runs_through_a_rewind_says_nothing_that_is_not_true(
    lab: Lab, first: dict[str, Any], control: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    """It reads the files of the restored server before that server runs and says who it is."""
    slow = tmp_path / "slow"
    slow.write_text(SLOW_START)
    slow.chmod(0o755)
    ((text, section),) = control
    slowly = section.replace(f'start = ["{SERVER}"', f'start = ["{slow}", "{SERVER}"')
    config = lab.changed((text, slowly), ('repository = "s3"\n', 'repository = "s3"\nbinlog = { interval = "1s" }\n'))
    log = tmp_path / "archiver.log"
    assert lab.zsnapdb("backup", "main", config=config).code == 0
    assert lab.zsnapdb("binlog", "archive", "--once", config=config).code == 0
    archiver = archiver_of(config, log)
    try:
        _, point = accident(lab)
        for number in range(5):
            lab.sql(f"INSERT INTO rewound.after_it VALUES ({number})")
        done = lab.zsnapdb("rewind", "main", "--to", point, "--yes", "--json", config=config)
        assert done.json["finished"]
        check_that_what_is_lost_is_said_and_archived(lab, done.json, config)
        check_that_nothing_is_unprotected_before_the_first_commit(lab, config)
        lab.sql("INSERT INTO rewound.lines VALUES (4)")
    finally:
        archiver.terminate()
        archiver.wait(60)
    said = log.read_text()
    assert (said.count("a new incarnation begins"), "second time" in said) == (1, False), said

    # A person puts the first server back. Its history goes on in the archive, and `latest` follows it.
    for file in INCLUDED.iterdir():
        file.unlink()
    to_the_first_server(lab)
    lab.sql("INSERT INTO rewound.after_it VALUES (7)")
    begun = lab.zsnapdb("binlog", "archive", "--once", "--json", config=config).json["begun"]
    assert "in production again" in str(begun)
    words = ("restore", "main", "--to", "latest", "--target", "tank/back", "--plan", "--json")
    planned = lab.zsnapdb(*words, config=config)
    assert planned.code == 0, planned.stderr
