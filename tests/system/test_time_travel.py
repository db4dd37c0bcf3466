"""Questions of the past are answered from ephemeral clones that can only be read and are gone afterwards."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.lab.inside import ledger
from zsnapdb.base.errors import ServerError
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import query

from .in_guest import CONFIG, SOCKET, Lab, ask, connect, everything, next_second
from .neighbours import TABLE, NeighboursTable

pytestmark = pytest.mark.usefixtures("first")

WORDS = ("", "a", "a\tb", "a b", "ab", "AB2", "ä", "B", "z", "Z1", "zz ", "ß", "日本")
"""Keys whose order depends on the collation."""


@dataclass(frozen=True)
class Past:
    """Two backups and a time between them."""

    before: str
    between: str
    after: str


@contextlib.contextmanager
def clock_moved(days: float) -> Iterator[None]:
    """Move the clock for the block, forth or back."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + days * 86400)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - days * 86400)


@pytest.fixture(scope="module")
def past(lab: Lab) -> Iterator[Past]:
    collations = (
        "utf8mb4_general_ci",
        "utf8mb4_0900_ai_ci" if lab.flavour == "mysql" else "utf8mb4_uca1400_nopad_ai_ci",
        "utf8mb4_bin",
    )
    lab.sql("CREATE DATABASE past")
    columns = ", ".join(f"w{n} VARCHAR(20) COLLATE {collation}" for n, collation in enumerate(collations))
    lab.sql(
        f"CREATE TABLE past.words ({columns}, kind ENUM('z', 'a'), price DECIMAL(10, 2), seen DATETIME, raw"
        " VARBINARY(20), PRIMARY KEY (w0, w1, w2, kind))"
    )
    for number, word in enumerate(WORDS):
        for kind in ("a", "z"):
            lab.sql(
                f"INSERT INTO past.words VALUES ('{word}', '{word}', '{word}', '{kind}', {number}.5, '2026-01-02"
                " 03:04:05', X'FF00')"
            )
    neighbours = NeighboursTable.on(lab.flavour)
    with ledger.connect(SOCKET, "root", "", None) as connection:
        neighbours.make(functools.partial(ask, connection))
    before = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    between = f"{next_second():%Y-%m-%dT%H:%M:%SZ}"
    next_second()
    lab.sql("UPDATE past.words SET price = 99, raw = NULL WHERE w0 = 'ab' AND kind = 'a'")
    lab.sql("DELETE FROM past.words WHERE w0 = 'z' AND kind = 'z'")
    lab.sql("INSERT INTO past.words VALUES ('neu', 'neu', 'neu', 'a', 1, NULL, NULL)")
    with ledger.connect(SOCKET, "root", "", None) as connection:
        neighbours.change(functools.partial(ask, connection))
    after = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    yield Past(before, between, after)
    lab.sql("DROP DATABASE past")


def test_a_query_is_answered_as_of_a_time_and_nothing_stays(lab: Lab, past: Past) -> None:
    before = everything()
    done = lab.zsnapdb(
        "query",
        "main",
        "--at",
        past.between,
        "--format",
        "csv",
        "SELECT w0, price, raw, seen FROM past.words WHERE kind = 'a' AND w2 IN ('ab', 'neu')",
    )
    assert done.code == 0, done.stderr
    assert list(csv.DictReader(io.StringIO(done.stdout))) == [
        {"w0": "ab", "price": "4.50", "raw": "0xff00", "seen": "2026-01-02 03:04:05"}
    ]
    assert f"{past.before}, made" in done.stderr
    assert f"the newest snapshot set at or before {past.between}" in done.stderr
    # Times and bytes as the server means them, of the newest backup by the name that a restore takes.
    times = "CAST('-00:00:01' AS TIME), CAST('100:30:00.5' AS TIME(1)), CAST('2026-01-02 03:04:05.5' AS DATETIME(1))"
    question = f"SELECT w0, raw, {times}, b'1000001', X'41' FROM past.words WHERE price IN (1, 99) ORDER BY w0"
    answer = lab.zsnapdb("query", "main", "--at", "latest-backup", "--json", question).json
    values = ["-00:00:01", "100:30:00.5", "2026-01-02 03:04:05.5", "0x41", "0x41"]
    assert answer["rows"] == [["ab", None, *values], ["neu", None, *values]]
    assert (answer["columns"][:2], answer["count"]) == (["w0", "raw"], 2)
    assert (answer["moment"]["backup_id"], answer["moment"]["exact"]) == (past.after, True)
    assert everything() == before


# The clone's server outlives the object that started it, on purpose; here it was started by this very process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_question_can_change_nothing_and_write_no_file(lab: Lab, past: Past) -> None:
    settings = load(CONFIG)
    instance = Instance.of(settings, "main")
    with query.past(settings, instance, query.find_moment(settings, instance, past.before)) as session:
        for statement in (
            "UPDATE past.words SET price = 0",
            "CREATE TABLE past.more (id INT)",
            "CREATE TEMPORARY TABLE past.more (id INT)",
            "SELECT * FROM past.words INTO OUTFILE '/var/lib/zsnapdb/out'",
            "SELECT 1; DROP TABLE past.words",
            "SET GLOBAL read_only = OFF",
            "GRANT ALL ON *.* TO CURRENT_USER()",
        ):
            with pytest.raises(ServerError):
                session.query(statement)
        assert session.value("SELECT COUNT(*) FROM past.words") == 2 * len(WORDS)
        # Half of a character is no text. The error ends the session.
        with pytest.raises(ServerError, match="a value is not text"):
            list(session.stream("SELECT CONVERT(X'D800' USING ucs2)")[1])


# What the server says is passed on as it is.
@pytest.mark.any_server
def test_a_failed_question_leaves_nothing_and_says_what_the_server_said(lab: Lab, past: Past) -> None:
    before = everything()
    done = lab.zsnapdb("query", "main", "--at", past.before, "SELECT * FROM past.nowhere")
    assert done.code == 5, done.stderr
    assert "past.nowhere" in done.stderr
    assert everything() == before


@pytest.mark.any_server
def test_a_question_whose_command_is_killed_leaves_nothing_after_the_next_reap(lab: Lab, past: Past) -> None:
    before = everything()
    words = ("query", "main", "--at", past.before, "SELECT SLEEP(600)")
    with subprocess.Popen([sys.executable, "-m", "zsnapdb", *words], stdout=subprocess.DEVNULL) as asking:
        try:
            until = time.monotonic() + 300
            while not any(clone["phase"] == "ready" for clone in lab.zsnapdb("clone", "list", "--json").json["clones"]):
                assert time.monotonic() < until, "no clone became ready"
                assert asking.poll() is None
                time.sleep(0.2)
            lab.zsnapdb("reap", "--json").json  # noqa: B018 - asserts success
            assert lab.zsnapdb("clone", "list", "--json").json["clones"], "it is in use"
        finally:
            asking.kill()
    assert "clone of a command that was killed" in lab.zsnapdb("doctor").stdout
    lab.zsnapdb("reap", "--json").json  # noqa: B018 - asserts success
    assert everything() == before


def test_a_table_is_compared_between_two_moments(lab: Lab, past: Past) -> None:
    before = everything()
    difference = lab.zsnapdb(
        "diff", "main", "--table", "`past`.`words`", "--from", past.before, "--to", past.after, "--json"
    ).json
    assert (difference["added"], difference["removed"], difference["changed"]) == (1, 1, 1)
    by_kind = {change["change"]: change for change in difference["changes"]}
    assert by_kind["added"]["key"] == ["neu", "neu", "neu", "a"]
    assert by_kind["removed"]["before"][:5] == ["z", "z", "z", "z", "8.50"]
    assert by_kind["changed"]["before"][4:] == ["4.50", "2026-01-02 03:04:05", "0xff00"]
    assert by_kind["changed"]["after"][4:] == ["99.00", "2026-01-02 03:04:05", None]
    assert everything() == before


def test_a_comparison_finds_each_value_that_became_its_neighbour_and_no_other(lab: Lab, past: Past) -> None:
    # The servers of the clones are in central Europe, where an hour comes twice.
    difference = lab.zsnapdb(
        "diff",
        "main",
        "--table",
        TABLE,
        "--from",
        past.before,
        "--to",
        past.after,
        "--json",
        environment={"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"},
    ).json
    found: dict[int, list[str]] = {}
    for change in difference["changes"]:
        assert change["change"] == "changed"
        values = zip(difference["columns"], map(repr, change["before"]), map(repr, change["after"]), strict=True)
        found.setdefault(change["key"][0], []).extend(name for name, old, new in values if old != new)
    neighbours = NeighboursTable.on(lab.flavour)
    assert found == {row: [column] for row, column in neighbours.truth.items()}
    by_key = {change["key"][0]: change for change in difference["changes"]}
    single = difference["columns"].index("v0")
    assert (by_key[0]["before"][single], by_key[0]["after"][single]) == (1234567, 1234568)


# No server is started.
@pytest.mark.any_server
def test_what_cannot_be_compared_is_refused_before_a_clone_is_made(lab: Lab, past: Past) -> None:
    for begin, end, said in (
        (past.before, past.between, "are both the snapshot set"),
        ("2026-01-01", past.after, "is a day and not a point in time"),
        ("2026-01-01T00:00:00", past.after, "does not say its zone"),
        ("1999-01-01T00:00:00Z", past.after, "no snapshot set on this host is at or before"),
        ("yesterday", past.after, "is not a point in time"),
    ):
        done = lab.zsnapdb("diff", "main", "--table", "past.words", "--from", begin, "--to", end)
        assert done.code in (2, 4, 6), done.stderr
        assert said in done.stderr


# ZFS, the record of the host and the repository order what is made: the server has no part in it. It comes last, as
# the sets and backups that it makes have wrong times.
@pytest.mark.any_server
def test_the_latest_is_what_was_made_last_whatever_the_clock_says(lab: Lab, past: Past) -> None:
    lab.sql("CREATE TABLE past.clocks (n INT PRIMARY KEY AUTO_INCREMENT)")

    def rows_of_a_clone() -> int:
        made = lab.zsnapdb("clone", "create", "main", "--name", "clocks", "--json").json
        with connect(made) as connection:
            count = int(ask(connection, "SELECT COUNT(*) FROM past.clocks")[0][0])
        lab.zsnapdb("clone", "destroy", "clocks")
        return count

    with clock_moved(40):
        lab.zsnapdb("snapshot", "main")
    lab.sql("INSERT INTO past.clocks VALUES ()")
    made = lab.zsnapdb("snapshot", "main", "--json").json["backup_id"]
    assert rows_of_a_clone() == 1
    assert lab.zsnapdb("backup", "main", "--set", "latest", "--json").json["backup"]["backup_id"] == made
    with clock_moved(40):
        lab.zsnapdb("backup", "main")
    lab.sql("INSERT INTO past.clocks VALUES ()")
    with clock_moved(-400):
        newest = lab.zsnapdb("backup", "main", "--json").json["backup"]["backup_id"]
    assert rows_of_a_clone() == 2
    to_newest = ("restore", "main", "--to", "latest-backup", "--target", "tank/clocks", "--plan", "--json")
    assert lab.zsnapdb(*to_newest).json["backup_id"] == newest

    # Gone from the bucket, it is the newest one that is missed, and not one that had expired.
    keeping = lab.changed(("[repository.s3]\n", "[instance.main.keep]\nlast = 1\ndaily = 1\n\n[repository.s3]\n"))
    store, prefix = lab.store()
    manifest = store.get(f"{prefix}main/manifests/{newest}.json")
    store.delete(f"{prefix}main/manifests/{newest}.json")
    missing = lab.zsnapdb("status", "main", config=keeping)
    assert "lacks 1 backup that this host stored: deleted, hidden" in missing.stdout + missing.stderr
    refused = lab.zsnapdb(*to_newest)
    assert (refused.code, newest in refused.stderr) == (7, True), refused.stderr
    store.put(f"{prefix}main/manifests/{newest}.json", manifest)
