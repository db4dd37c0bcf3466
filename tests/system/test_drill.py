"""Drills: a good backup passes, a wrong answer fails, a damaged page fails; the copy is always removed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside.ledger import BALLAST_ROWS

from .in_guest import CONFIG, SERVER, Done, Lab, everything, holds, run

GOOD_PROBE = f"""
[[instance.main.drill.probe]]
name = "no money is lost"
sql = "SELECT SUM(balance) FROM ledger.accounts"
expect = 200000000
[[instance.main.drill.probe]]
sql = "SELECT COUNT(*) FROM ledger.ballast"
at_least = {BALLAST_ROWS}
at_most = {BALLAST_ROWS}
"""
WRONG_PROBE = f"""
[[instance.main.drill.probe]]
name = "wishful thinking"
sql = "SELECT COUNT(*) FROM ledger.ballast"
at_least = {BALLAST_ROWS + 1}
[[instance.main.drill.probe]]
name = "a table that is not there"
sql = "SELECT COUNT(*) FROM ledger.nothing"
at_least = 0
"""
SCRATCH = "tank/zsnapdb/scratch"


def seen() -> tuple[list[str], list[str], list[str]]:
    """Return datasets, holds and the mount folders of drills."""
    home = tuple(f"{SCRATCH}{below}\t" for below in ("", "/main", "/main/drill", "/main/rescue"))
    mounts = sorted(str(path) for path in Path("/var/lib/zsnapdb").rglob("drill-*"))
    return (
        [line for line in everything() if "@" not in line and "#" not in line and not line.startswith(home)],
        holds(),
        mounts,
    )


@pytest.fixture(autouse=True)
def nothing_stays(lab: Lab, first: dict[str, Any]) -> Iterator[None]:
    """Check that no new dataset, hold, mount folder or server process exists after the block."""
    before = seen()
    yield
    assert seen() == before
    assert servers_of_drills() == []


def servers_of_drills() -> list[int]:
    servers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"/drill-" in path.read_bytes() and b"--defaults-file=" in path.read_bytes():
                servers.append(int(path.parent.name))
        except OSError:
            continue
    return servers


def with_probes(lab: Lab, probes: str) -> Path:
    return lab.changed(("[repository.s3]", f"{probes}\n[repository.s3]"))


def test_a_drill_passes_and_leaves_its_evidence_alone(lab: Lab, first: dict[str, Any]) -> None:
    config, before = with_probes(lab, GOOD_PROBE), lab.objects()
    plan = lab.zsnapdb("drill", "main", "--plan", "--json", config=config).json
    assert (plan["probes"], plan["steps"][0], lab.objects()) == (2, "preflight", before)
    evidence = lab.zsnapdb("drill", "main", "--all", "--json", config=config).json["drill"]
    assert evidence["outcome"] == "passed"
    assert {check["kind"] for check in evidence["checks"]} == {"position", "pages", "isolation", "table", "probe"}
    checked = {check["what"] for check in evidence["checks"] if check["kind"] in ("pages", "table")}
    assert {"data/ledger/ballast.ibd", "data/ibdata1", "`ledger`.`accounts`"} <= checked
    kinds = [step["kind"] for step in evidence["steps"]]
    assert (kinds[0], kinds[-4:]) == ("preflight", ["pages", "start", "tables", "probes"])
    assert {"receive", "mount", "recover"} <= set(kinds)
    assert all(
        step["seconds"] > 0 and step["size"] > 0 for step in evidence["steps"] if step["kind"] in ("receive", "pages")
    )
    (new,) = set(lab.objects()) - set(before)
    assert re.search(rf"main/drills/{evidence['drill_id']}-[1-9]\d*\.json$", new)
    assert lab.zsnapdb("drills", "main", "latest", "--json").json["drill"] == evidence
    assert evidence["drill_id"] in lab.zsnapdb("drills", "main").stdout


@dataclass(frozen=True)
class DamagedPage:
    """What a drill said of a backup with a damaged page, and the configuration of the repository with that backup."""

    config: Path
    table: str
    drill: Done


@pytest.fixture(scope="module")
def old_page(lab: Lab) -> Iterator[tuple[str, int]]:
    """A table of one file, and a byte of a page in it which was not written since the last checkpoint.

    MySQL reads a damaged page a hundred times and prints it byte by byte each time, which takes a second of the guest
    for 16 KiB. So its table has pages of 4 KiB. A stop of the server writes them.
    """
    if lab.flavour == "mariadb":
        yield "mysql/transaction_registry", 3 * 16384 + 8000
        return
    lab.sql("CREATE DATABASE squeezed")
    lab.sql("CREATE TABLE squeezed.words (word VARCHAR(9) PRIMARY KEY) ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 4")
    lab.sql("INSERT INTO squeezed.words VALUES ('here'), ('there')")
    assert run(SERVER, "stop").code == run(SERVER, "start").code == 0
    yield "squeezed/words", 4 * 4096 + 2000
    lab.sql("DROP DATABASE squeezed")


@pytest.fixture(scope="module")
def damaged(lab: Lab, first: dict[str, Any], old_page: tuple[str, int]) -> DamagedPage:
    """The page is old: the server rebuilds a page written since the last checkpoint from its redo log.

    The backups have a repository of their own, because what a drill found stays known.
    """
    folder = Path("/srv/s3/damaged-pages")
    folder.mkdir()
    config = lab.elsewhere(('url = "s3://backups/lab"', f'url = "file://{folder}"'))
    table, place = old_page
    file = Path(f"/var/lib/mysql/data/{table}.ibd")
    good = file.read_bytes()
    try:
        with file.open("r+b") as damaged:
            damaged.seek(place)
            damaged.write(b"damage")
        # A backup carries the page as it is.
        lab.zsnapdb("backup", "--json", config=config).json  # noqa: B018 - asserts success
    finally:
        file.write_bytes(good)
    before = seen()
    drill = lab.zsnapdb("drill", "main", "--all", config=config)
    assert (seen(), servers_of_drills()) == (before, [])
    return DamagedPage(config, table, drill)


def test_a_damaged_page_is_found(lab: Lab, damaged: DamagedPage) -> None:
    done, table = damaged.drill, damaged.table
    assert done.code == 7, done.stdout + done.stderr
    assert f"damaged   pages data/{table}.ibd: " in done.stdout
    assert f"damaged   table `{table.replace('/', '`.`')}`: " in done.stdout
    drill = lab.zsnapdb("drills", "main", "latest", "--json", config=damaged.config).json["drill"]
    assert drill["outcome"] == "damaged"


# What is known of damage lies in the repository; that a drill reads pages is tested on both servers.
@pytest.mark.any_server
def test_a_damaged_page_stays_known_until_a_drill_has_read_its_file(lab: Lab, damaged: DamagedPage) -> None:
    """It may still be damaged in the next backup, which here is good again."""
    config = damaged.config
    lab.zsnapdb("backup", "--json", config=config).json  # noqa: B018 - asserts success
    assert "is damaged, known since" in lab.zsnapdb("show", "main", "latest", config=config).stdout
    assert lab.zsnapdb("drill", "main", "--all", config=config).code == 0
    assert lab.zsnapdb("show", "main", "latest", "--json", config=config).json["known_damage"] == []


@pytest.mark.any_server
def test_a_damaged_chunk_fails_the_drill_of_its_backup_with_evidence(lab: Lab, first: dict[str, Any]) -> None:
    store, prefix = lab.store()
    key = f"{prefix}main/chunks/{first['backup_id']}/data/00000001"
    good = store.get(key)
    try:
        store.put(key, good[:-1])
        done = lab.zsnapdb("drill", "main", "--to", first["backup_id"])
    finally:
        store.put(key, good)
    assert done.code == 7, done.stdout + done.stderr
    assert f"damaged   restore {first['backup_id']}: chunk main/chunks" in done.stdout
    shown = lab.zsnapdb("show", "main", first["backup_id"]).stdout
    assert f"damaged   backup {first['backup_id']} is damaged, known since" in shown
    # The object is good again. Only reading clears what a drill has read.
    assert lab.zsnapdb("verify", "main", "--deep").code == 0
    assert lab.zsnapdb("show", "main", first["backup_id"], "--json").json["known_damage"] == []


@pytest.mark.any_server
def test_after_kill_9_the_next_drill_sweeps_and_a_wrong_answer_fails_it(lab: Lab) -> None:
    drill = subprocess.Popen(
        ["zsnapdb", "drill", "main"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "ZSNAPDB_CONFIG": str(CONFIG)},
    )
    deadline = time.monotonic() + 300
    while not servers_of_drills():
        assert time.monotonic() < deadline
        assert drill.poll() is None
        time.sleep(0.05)
    drill.send_signal(signal.SIGKILL)
    drill.wait()
    assert servers_of_drills() != []
    done = lab.zsnapdb("drill", "main", config=with_probes(lab, WRONG_PROBE))
    assert done.code == 11, done.stdout + done.stderr
    assert "which an interrupted run left" in done.stderr
    assert f"failed    probe wishful thinking: it answered {BALLAST_ROWS}, less than {BALLAST_ROWS + 1}" in done.stdout
    assert "failed    probe a table that is not there" in done.stdout
