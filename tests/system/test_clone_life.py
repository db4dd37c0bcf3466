"""Jobs on a clone: lease, reset, commit, detach, loss of files; the sources of clones; and the reaper.

The reaper removes only what it may remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.lab.inside import ledger

from .in_guest import CONFIG, Lab, clock_ahead, end_process, everything, remove_unused_sets, run, zfs

pytestmark = pytest.mark.usefixtures("first")

MOUNTS = Path("/var/lib/zsnapdb/clones")


@contextlib.contextmanager
def connected(lab: Lab, name: str) -> Iterator[pymysql.Connection]:
    login = lab.zsnapdb("clone", "connect", name, "--json").json
    with pymysql.connect(
        host=login["host"], port=login["port"], user=login["user"], password=login["password"], autocommit=True
    ) as connection:
        yield connection


def ask(connection: pymysql.Connection, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def show(lab: Lab, name: str) -> dict[str, Any]:
    clone: dict[str, Any] = lab.zsnapdb("clone", "show", name, "--json").json["clone"]
    return clone


def swept(lab: Lab, *words: str, config: Path = CONFIG) -> dict[str, dict[str, Any]]:
    done = lab.zsnapdb("reap", "--json", *words, config=config)
    return {item["name"]: item for item in done.json["swept"]}


def with_terms(lab: Lab, terms: str) -> Path:
    """The configuration with a [clones] section."""
    return lab.changed(("[repository.s3]", f"[clones]\n{terms}\n\n[repository.s3]"))


def plans_of_changes_change_nothing(lab: Lab) -> None:
    """Each change of the running clone `life` says what it would do.

    Afterwards the clone, and all datasets, are as they were.
    """

    def seen() -> tuple[dict[str, Any], list[str]]:
        # What it occupies changes by itself: its server runs.
        return {key: value for key, value in show(lab, "life").items() if not key.endswith("bytes")}, everything()

    before = seen()
    for words, expected in (
        (("start",), ""),
        (("stop",), f"shut down process {before[0]['pid']} cleanly"),
        (("extend", "--ttl", "2h"), f"instead of {before[0]['expires']}"),
        (("extend", "--ttl", "1s"), ""),
        (("protect", "--for", "1h"), "protect the clone until"),
        (("commit",), "FLUSH TABLES WITH READ LOCK"),
    ):
        steps = lab.zsnapdb("clone", words[0], "life", *words[1:], "--plan", "--json").json["steps"]
        assert (bool(steps), expected in "".join(steps)) == (bool(expected), True), words
    assert lab.zsnapdb("clone", "prepare", "main", "--plan", "--json").json["steps"]
    assert seen() == before


def environment_reaches_the_clone(lab: Lab, name: str, expected: str) -> None:
    """The exports of `connect --env` are all that the family's own client needs."""
    exports = lab.zsnapdb("clone", "connect", name, "--env").stdout
    client = "/opt/mysql/bin/mysql" if lab.flavour == "mysql" else "mariadb"
    script = f"{exports}\nexec {client} -N -e 'SELECT id FROM ledger.mine; SELECT CURRENT_USER()'"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    # The server may take 127.0.0.1 for localhost.
    row, user = done.stdout.split()
    assert (row, user.partition("@")[0]) == (expected, "zsnapdb_clone"), done.stderr


def it_survives_the_loss_of_every_file_of_ours(lab: Lab, name: str) -> dict[str, Any]:
    """The files are lost while the server runs, then a reboot takes the server and the mounts. Return what it was."""
    clone = show(lab, name)
    shutil.rmtree(MOUNTS / name / ".zsnapdb")
    assert show(lab, name)["pid"] == clone["pid"]
    end_process(clone["pid"])
    for dataset in reversed(list(clone["volumes"].values())):
        zfs("unmount", dataset)
    assert lab.zsnapdb("clone", "start", name).code == 0
    with connected(lab, name) as here:
        assert ask(here, "SELECT id FROM ledger.mine") == [(1,)]
        assert ask(here, "SELECT @@port") == [(clone["port"],)]
    return clone


def a_foreign_snapshot_keeps_a_clone_until_it_may_go(lab: Lab, clone: dict[str, Any]) -> None:
    """The refusals name whose snapshot it is, and the server runs on; afterwards the clone is gone."""
    pid = show(lab, clone["name"])["pid"]
    # An administrator or a program made a recursive snapshot, and holds one of its snapshots.
    foreign = f"{clone['volumes']['data']}@autosnap_2026-11-20_10:00:00_hourly"
    zfs("snapshot", "-r", f"tank/zsnapdb/clones@{foreign.partition('@')[2]}")
    zfs("hold", "theirs", foreign)
    for words, said in (((), "made by sanoid"), (("--with-foreign-snapshots",), "held by theirs")):
        refused = lab.zsnapdb("clone", "destroy", clone["name"], *words)
        assert (refused.code, said in refused.stderr, show(lab, clone["name"])["pid"]) == (4, True, pid), refused.stderr
    zfs("release", "theirs", foreign)
    assert lab.zsnapdb("clone", "destroy", clone["name"], "--with-foreign-snapshots").code == 0
    zfs("destroy", f"tank/zsnapdb/clones@{foreign.partition('@')[2]}")


@pytest.mark.any_server
def test_a_clone_is_reset_committed_detached_and_survives_the_loss_of_every_file_of_ours(lab: Lab) -> None:
    before = everything()
    made = lab.zsnapdb(
        "clone", "create", "main", "--name", "life", "--owner", "ada", "--profile", "tiny", "--ttl", "1h", "--json"
    ).json
    plans_of_changes_change_nothing(lab)
    with connected(lab, "life") as here:
        assert ask(here, "SELECT @@innodb_buffer_pool_size") == [(32 << 20,)]
        ask(here, "CREATE TABLE ledger.mine (id INT)")
        ask(here, "INSERT INTO ledger.mine VALUES (1)")
        commit = lab.zsnapdb("clone", "commit", "life", "-m", "one row", "--json").json
        ask(here, "INSERT INTO ledger.mine VALUES (2)")
    plan = lab.zsnapdb("clone", "reset", "life", "--plan", "--json").json
    assert all("@" in name for name in plan["snapshots"].values())
    reset = lab.zsnapdb("clone", "reset", "life", "--json").json["clone"]
    assert (reset["port"], reset["owner"], reset["expires"]) == (made["clone"]["port"], "ada", made["clone"]["expires"])
    # The same address and the same password, on the original data.
    with pymysql.connect(host="127.0.0.1", port=reset["port"], user=made["user"], password=made["password"]) as here:
        assert ask(here, "SHOW TABLES FROM ledger LIKE 'mine'") == []
    assert (reset["requested"], reset["masked"]) == ("latest", False)
    # The original data is what the clone was created from, also after a reset to something else: its own commit.
    mine = lab.zsnapdb("clone", "reset", "life", "--from", commit["id"], "--json").json["clone"]
    assert (mine["backup_id"], mine["requested"]) == (commit["id"], commit["id"])
    environment_reaches_the_clone(lab, "life", "1")
    again = lab.zsnapdb("clone", "reset", "life", "--plan", "--json").json
    assert (again["backup_id"], again["original"]) == (made["clone"]["backup_id"], True)

    # A commit is a snapshot set like any other; a clone of it holds what was committed.
    lab.zsnapdb("clone", "create", "main", "--name", "child", "--from", commit["id"], "--json").json  # noqa: B018
    with connected(lab, "child") as here:
        assert ask(here, "SELECT id FROM ledger.mine") == [(1,)]
    # The clone can be destroyed, its own commit and its clone notwithstanding: the commit goes to the clone.
    plan = lab.zsnapdb("clone", "destroy", "life", "--plan", "--json").json["clones"][0]
    assert plan["handed_over"] == {commit["id"]: "child"}
    assert lab.zsnapdb("clone", "destroy", "life").code == 0
    names = zfs("list", "-H", "-o", "name", "-t", "all")
    assert not [name for name in names if name.startswith("tank/zsnapdb/clones/life")]
    with connected(lab, "child") as here:
        assert ask(here, "SELECT id FROM ledger.mine") == [(1,)]
    commits = lab.zsnapdb("clone", "show", "child", "--json").json["commits"]
    assert [(made["id"], made["clone"], made["message"]) for made in commits] == [(commit["id"], "child", "one row")]
    cost = lab.zsnapdb("clone", "detach", "child", "--plan", "--json").json
    assert 0 < cost["cost_bytes"] < cost["available_bytes"]
    assert not show(lab, "child")["independent"]
    assert lab.zsnapdb("clone", "detach", "child").code == 0
    assert show(lab, "child")["independent"]

    child = it_survives_the_loss_of_every_file_of_ours(lab, "child")
    for dataset in child["volumes"].values():
        assert zfs("get", "-H", "-o", "value", "com.sun:auto-snapshot,syncoid:sync", dataset) == ["false", "false"]
    a_foreign_snapshot_keeps_a_clone_until_it_may_go(lab, child)
    assert everything() == before
    assert not list(MOUNTS.iterdir())


@pytest.mark.any_server
def test_prepared_set_of_renamed_snapshot_is_not_used(lab: Lab) -> None:
    before = everything()
    zfs("snapshot", "-r", "tank/mysql@daily")
    assert lab.zsnapdb("clone", "prepare", "main", "--from", "@daily").code == 0
    zfs("rename", "-r", "tank/mysql@daily", "older")
    lab.sql("CREATE TABLE ledger.after_the_rename (id INT)")
    zfs("snapshot", "-r", "tank/mysql@daily")
    try:
        plan = lab.zsnapdb("clone", "create", "main", "--from", "@daily", "--plan", "--json").json
        assert plan["prepared"] is False
        lab.zsnapdb("clone", "create", "main", "--name", "renamed", "--from", "@daily", "--json").json  # noqa: B018
        with connected(lab, "renamed") as here:
            assert ask(here, "SELECT COUNT(*) FROM ledger.after_the_rename") == [(0,)]
        zfs("rename", "-r", "tank/mysql@daily", "newer")
        lab.sql("DROP TABLE ledger.after_the_rename")
        zfs("snapshot", "-r", "tank/mysql@daily")
        assert lab.zsnapdb("clone", "reset", "renamed", "--replace").code == 0
        with connected(lab, "renamed") as here:
            assert ask(here, "SELECT COUNT(*) FROM ledger.after_the_rename") == [(0,)]
        assert lab.zsnapdb("clone", "reset", "renamed", "--from", "latest").code == 0
        refused = lab.zsnapdb("clone", "reset", "renamed")
        assert (refused.code, "the object that now has this name may be" in refused.stderr) == (4, True)
    finally:
        lab.sql("DROP TABLE IF EXISTS ledger.after_the_rename")
        assert lab.zsnapdb("clone", "destroy", "renamed").code == 0
        remove_unused_sets(lab)
        for name in ("older", "newer", "daily"):
            zfs("destroy", "-r", f"tank/mysql@{name}")
    assert everything() == before


@pytest.mark.any_server
def test_the_live_state_and_what_is_only_in_the_repository_are_cloned_and_prepared(
    lab: Lab, load_running: ledger.Load
) -> None:
    before = everything()
    state = load_running.total()
    lab.zsnapdb("clone", "create", "main", "--name", "live", "--from", "live", "--json").json  # noqa: B018
    with connected(lab, "live") as here:
        here.select_db("ledger")
        cloned = ledger.read_state(here)
        assert len(cloned.journal) >= state, "what was committed before is in it"
        assert not [check for check in ledger.compare("live", cloned, cloned.journal, cloned.ballast) if not check.ok]
    assert lab.zsnapdb("clone", "destroy", "live").code == 0
    assert everything() == before, "the set that was taken for it went with it"
    assert swept(lab) == {}

    backup = lab.zsnapdb("backup", "--json").json["backup"]
    # What follows reads the backup only, not the source.
    load_running.stop()
    truth = lab.truth(backup)
    names = [f"{volume['dataset']}@zsnapdb-{backup['backup_id']}" for volume in backup["volumes"]]
    for name in names:
        zfs("destroy", name)
    plan = lab.zsnapdb("clone", "create", "main", "--from", backup["backup_id"], "--plan", "--json").json
    assert plan["source"] == "repository"
    assert plan["receives"][-1] == backup["backup_id"]
    assert lab.zsnapdb("clone", "prepare", "main", "--from", backup["backup_id"]).code == 0
    lab.zsnapdb("clone", "create", "main", "--name", "ready", "--from", backup["backup_id"], "--json").json  # noqa: B018
    with connected(lab, "ready") as here:
        here.select_db("ledger")
        assert ledger.read_state(here).journal == truth
    log = (MOUNTS / "ready" / ".zsnapdb" / "error.log").read_text()
    assert "ready for connections" in log
    assert "not shutdown normally" not in log
    assert "crash recovery from checkpoint" not in log
    plan = lab.zsnapdb("clone", "create", "main", "--from", backup["backup_id"], "--plan", "--json").json
    assert (plan["receives"], plan["prepared"]) == ([], True), "it is fetched and recovered once"
    unused = with_terms(lab, 'keep_unused = "0s"')
    items = lab.zsnapdb("reap", "--json", config=unused).json["swept"]
    is_set = [item["name"].startswith(f"{backup['backup_id']}-") for item in items]
    assert sorted(is_set) == [False, True, True], "the clone, the received set and the prepared one"
    assert {item["verdict"] for item in items} == {"keep"}
    assert lab.zsnapdb("clone", "destroy", "ready").code == 0
    for _ in range(2):
        swept(lab, config=unused)
    assert not [
        name
        for name in zfs("list", "-H", "-o", "name")
        if name.startswith(("tank/zsnapdb/received/", "tank/zsnapdb/prepared/"))
    ]
    # The chain goes on from the bookmarks.
    assert lab.zsnapdb("backup").code == 0


# Leases and locks are files and properties. The one question to a server, how many clients it has, is the same on both.
@pytest.mark.any_server
def test_the_reaper_takes_what_is_expired_and_spares_what_is_used_protected_or_worked_on(lab: Lab) -> None:
    before = everything()
    config = with_terms(lab, 'grace = "1h"\nreap_limit = 1\nper_owner = 3')
    words = ("clone", "create", "main", "--ttl", "1s", "--owner", "eve", "--name")
    # A sweep takes the oldest first, and of those of the same second by name.
    for name in (("guarded", "--no-start"), ("locked", "--no-start"), ("used",)):
        assert lab.zsnapdb(*words, *name, config=config).code == 0
    refused = lab.zsnapdb(*words, "fourth", "--no-start", config=config)
    assert refused.code == 4
    assert "clones.per_owner" in refused.stderr
    assert lab.zsnapdb("clone", "create", "main", "--ttl", "400d").code == 4
    assert lab.zsnapdb("clone", "protect", "guarded", "--for", "400d").code == 4
    assert lab.zsnapdb("clone", "protect", "guarded", "--for", "1h").code == 0
    # The server of an expired clone is not started, and its data is not reset.
    for verb in ("start", "reset"):
        ended = lab.zsnapdb("clone", verb, "locked")
        assert (ended.code, "extend its lease first" in ended.stderr) == (4, True), ended.stderr

    with connected(lab, "used"), open("/run/zsnapdb/clone-locked.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcomes = swept(lab, config=config)
        assert {name: item["verdict"] for name, item in outcomes.items()} == {
            "guarded": "keep",
            "locked": "keep",
            "used": "keep",
        }
        assert "protected" in outcomes["guarded"]["reason"]
        assert "working on it" in outcomes["locked"]["reason"]
        assert "clients are connected" in outcomes["used"]["reason"]
    planned = swept(lab, "--plan", config=config)
    assert planned["locked"]["verdict"] == "reap"
    assert len(lab.zsnapdb("clone", "list", "--json").json["clones"]) == 3, "a plan takes nothing"
    # One at most in a sweep; an extended one stays.
    assert lab.zsnapdb("clone", "extend", "used", "--ttl", "1h").code == 0
    assert swept(lab, config=config)["locked"]["verdict"] == "reap"
    assert {c["name"] for c in lab.zsnapdb("clone", "list", "--json").json["clones"]} == {"guarded", "used"}
    assert lab.zsnapdb("clone", "protect", "guarded", "--for", "0s").code == 0
    assert swept(lab, config=config)["guarded"]["verdict"] == "reap"
    assert lab.zsnapdb("clone", "destroy", "used").code == 0
    assert everything() == before


@pytest.mark.any_server
def test_clock_ahead_for_a_moment_removes_no_clone_and_no_set(lab: Lab) -> None:
    before = everything()
    config = lab.changed(("[repository.s3]", '[instance.main.local]\nwithin = "30m"\n\n[repository.s3]'))

    def snapshot() -> str:
        return str(lab.zsnapdb("snapshot", "main", "--json", config=config).json["backup_id"])

    def sets() -> set[str]:
        return {
            one["backup_id"] for one in lab.zsnapdb("list", "main", "--local", "--json", config=config).json["sets"]
        }

    minutes = {snapshot() for _ in range(3)}
    created = lab.zsnapdb("clone", "create", "main", "--no-start", "--ttl", "8h", "--name", "hours", config=config)
    assert created.code == 0, created.stderr
    with clock_ahead(5 * 3600):
        warned = lab.zsnapdb("snapshot", "main", config=config)
    assert (warned.code, "5 h ahead of its steady clock" in warned.stderr) == (0, True), warned.stderr
    assert minutes < sets()
    with clock_ahead(40 * 86_400):
        kept = swept(lab, config=config)["hours"]
        assert (kept["verdict"], "zsnapdb reap --trust-clock" in kept["reason"]) == ("keep", True), kept
        doctor = lab.zsnapdb("doctor", "main", config=config)
        assert "40 d ahead of its steady clock" in doctor.stdout
        assert lab.zsnapdb("clone", "extend", "hours", "--ttl", "9h", config=config).code == 0
    # A lease that was given while the clock was ahead begins when the clock is right.
    assert lab.zsnapdb("reap", "--trust-clock", config=config).code == 0
    (clone,) = lab.zsnapdb("clone", "list", "--json", config=config).json["clones"]
    left = datetime.fromisoformat(clone["expires"]) - datetime.now(UTC)
    assert timedelta(hours=8) < left <= timedelta(hours=9), left
    assert (swept(lab, config=config)["hours"]["verdict"], minutes < sets()) == ("keep", True)
    # If the later clock is right, the former times were too early: by the steady clock the clone is minutes old.
    with clock_ahead(40 * 86_400):
        kept = swept(lab, "--trust-clock", config=config)["hours"]
        assert kept["verdict"] == "keep", kept
    # The clock goes back by more than anybody confirmed: another doubt, which a person ends.
    assert lab.zsnapdb("reap", "--trust-clock", config=config).code == 0
    assert "steady clock" not in lab.zsnapdb("doctor", "main", config=config).stdout
    assert lab.zsnapdb("clone", "destroy", "hours", config=config).code == 0
    for line in set(everything()) - set(before):
        zfs("destroy", line.partition("\t")[0])


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(("extend", "--ttl", "1h"), marks=pytest.mark.any_server),
        pytest.param(("protect", "--for", "1h"), marks=pytest.mark.any_server),
        ("commit", "-m", "raced"),
    ],
    ids=lambda words: words[0],
)
def test_a_reaper_and_a_user_at_the_same_moment_never_leave_half_a_clone(lab: Lab, verb: tuple[str, ...]) -> None:
    before = everything()
    name = f"raced-{verb[0]}"
    starts = verb[0] == "commit"
    assert (
        lab.zsnapdb("clone", "create", "main", *(() if starts else ("--no-start",)), "--ttl", "1s", "--name", name).code
        == 0
    )
    codes: dict[str, int] = {}

    def go(key: str, *words: str) -> None:
        codes[key] = subprocess.run(["zsnapdb", *words], capture_output=True, timeout=300, check=False).returncode

    threads = [
        threading.Thread(target=go, args=("user", "clone", verb[0], name, *verb[1:])),
        threading.Thread(target=go, args=("reaper", "reap")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = {c["name"]: c for c in lab.zsnapdb("clone", "list", "--json").json["clones"]}
    assert codes["reaper"] == 0
    if name in there:
        # A commit is refused after the end of the lease.
        assert codes["user"] in ((0, 4) if starts else (0,))
        assert there[name]["phase"] == ("ready" if starts else "new")
        assert len(there[name]["volumes"]) == 2
    else:
        # A commit does not keep its clone: it goes with the clone.
        assert starts or codes["user"] in (2, 6), "what was extended or protected is never taken after that"
    assert lab.zsnapdb("clone", "destroy", name).code == 0
    assert everything() == before


@pytest.mark.any_server
def test_a_clone_takes_over_a_commit_that_is_larger_than_its_quota_and_is_detached(lab: Lab, tmp_path: Path) -> None:
    before = everything()
    writer = lab.zsnapdb("clone", "create", "main", "--name", "writer", "--json").json["clone"]
    (Path(writer["mount"]) / "data" / "filler").write_bytes(os.urandom(96 << 20))
    commit = lab.zsnapdb("clone", "commit", "writer", "--json").json["id"]
    assert lab.zsnapdb("clone", "create", "main", "--name", "heir", "--from", commit, "--no-start").code == 0
    assert lab.zsnapdb("clone", "extend", "heir", "--quota", "80MiB").code == 0
    # Without more room ZFS refuses.
    assert "out of space" in run("zfs", "promote", show(lab, "heir")["volumes"]["data"]).stderr
    had = show(lab, "heir")["own_bytes"]
    destroyed = lab.zsnapdb("clone", "destroy", "writer")
    assert destroyed.code == 0, destroyed.stderr
    heir = show(lab, "heir")
    assert heir["own_bytes"] > 96 << 20
    # It may write as much as before, to a few blocks.
    assert heir["quota"] - heir["own_bytes"] == pytest.approx((80 << 20) - had, abs=2 << 20)
    free = int(zfs("get", "-H", "-p", "-o", "value", "available", "tank")[0])
    # The quota of all clones, which has the floor in it, is not counted with the floor again.
    cost = lab.zsnapdb("clone", "detach", "heir", "--plan", "--json").json
    assert cost["available_bytes"] == pytest.approx(free, abs=64 << 20)
    config = with_terms(lab, f'free_floor = "{free + (1 << 30)}B"')
    diagnosis = lab.zsnapdb("doctor", "--json", config=config)
    assert "less than clones.free_floor" in diagnosis.stdout
    check_that_a_pool_below_the_floor_is_told_and_its_end_too(lab, f'free_floor = "{free + (1 << 30)}B"', tmp_path)
    zfs("set", "quota=none", heir["volumes"]["data"].rpartition("/")[0])
    assert "clone heir has no quota" in lab.zsnapdb("doctor", "--json").stdout
    assert lab.zsnapdb("clone", "destroy", "heir").code == 0
    assert everything() == before


def check_that_a_pool_below_the_floor_is_told_and_its_end_too(lab: Lab, low: str, folder: Path) -> None:
    pager, pages = folder / "pager", folder / "pages"
    pager.write_text(f"#!/bin/sh\ncat >> {pages}\necho >> {pages}\n")
    pager.chmod(0o755)
    notified = f'[notifications]\nstate = "{folder}/told"\n[notifications.to.pager]\nscript = ["{pager}"]\n'
    for terms in (low, low, 'free_floor = "1B"', 'free_floor = "1B"'):
        config = with_terms(lab, terms)
        config.write_text(f"{config.read_text()}\n{notified}")
        lab.zsnapdb("status", "--all", "--notify", config=config)
    told = [json.loads(line) for line in pages.read_text().splitlines()]
    assert [(one["subject"], one["event"]) for one in told] == [
        ("free-floor tank", "broken"),
        ("free-floor tank", "met"),
    ], told
    assert "less than clones.free_floor" in told[0]["text"]
