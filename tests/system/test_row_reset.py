"""A reset that undoes rows gives the same as one that replaces the data, or replaces it and says why."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from .in_guest import CONFIG, Lab, ask, connect, everything

pytestmark = pytest.mark.usefixtures("first")

TABLES_SQL = """
CREATE TABLE `rows`.counted (id INT AUTO_INCREMENT PRIMARY KEY, word VARCHAR(40) CHARACTER SET utf8mb4,
  n BIGINT UNSIGNED, UNIQUE KEY (word));
CREATE TABLE `rows`.typed (a INT, b VARBINARY(16), d DECIMAL(20, 6), t DATETIME(6),
  s TIMESTAMP(3) NULL ON UPDATE CURRENT_TIMESTAMP(3), f DOUBLE, g FLOAT, e ENUM('x', 'y', 'z'), m SET('p', 'q', 'r'),
  o BIT(11), y YEAR, l TEXT, z BLOB, c INT GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (a, b));
CREATE TABLE `rows`.parents (id INT PRIMARY KEY);
CREATE TABLE `rows`.children (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES `rows`.parents (id));
CREATE TABLE `rows`.owners (id INT PRIMARY KEY);
CREATE TABLE `rows`.owned (id INT PRIMARY KEY, owner INT,
  FOREIGN KEY (owner) REFERENCES `rows`.owners (id) ON DELETE CASCADE);
CREATE TABLE `rows`.documents (id INT PRIMARY KEY, word TEXT, facts JSON);
CREATE TABLE `rows`.keyless (n INT);
CREATE TABLE `rows`.parted (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2;
CREATE TABLE `rows`.old (id INT PRIMARY KEY) ENGINE = MyISAM;
INSERT INTO `rows`.counted (word, n) VALUES ('one', 1), ('two', 2), ('Straße', 18446744073709551615), ('', NULL);
INSERT INTO `rows`.typed (a, b, d, t, s, f, g, e, m, o, y, l, z) VALUES
  (1, X'00FF', 1.5, '2020-02-29 12:00:00.123456', '2021-01-01 00:00:00.5', 0.1, 0.25, 'y', 'p,r', b'10110', 2024,
   'text', X'0001'), (2, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO `rows`.parents VALUES (1), (2), (3);
INSERT INTO `rows`.children VALUES (1, 1), (2, NULL);
INSERT INTO `rows`.owners VALUES (1);
INSERT INTO `rows`.owned VALUES (1, 1), (2, 1);
INSERT INTO `rows`.documents VALUES (1, 'a', '{"weight": 1.5}'), (2, NULL, NULL);
INSERT INTO `rows`.keyless VALUES (1), (1);
INSERT INTO `rows`.old VALUES (1)
"""
TABLES = ("counted", "typed", "parents", "children", "owners", "owned", "documents", "keyless", "old")


@pytest.fixture(scope="module")
def filled(lab: Lab) -> Iterator[None]:
    lab.sql("CREATE DATABASE `rows`")
    for made in TABLES_SQL.split(";\n"):
        lab.sql(made)
    assert lab.zsnapdb("backup").code == 0
    yield
    lab.sql("DROP DATABASE `rows`")


def state(login: dict[str, Any]) -> dict[str, Any]:
    """Every row and every counter."""
    with connect(login) as here:
        if ask(here, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
            ask(here, "SET SESSION information_schema_stats_expiry = 0")
        found: dict[str, Any] = {
            table: sorted(ask(here, f"SELECT * FROM `rows`.`{table}`"), key=repr)
            for table in TABLES
            if ask(here, f"SHOW TABLES FROM `rows` LIKE '{table}'")
        }
        found["tables"] = sorted(ask(here, "SHOW TABLES FROM `rows`"))
        found["counters"] = sorted(
            ask(
                here,
                "SELECT table_name, COALESCE(auto_increment, 1) FROM information_schema.tables"
                " WHERE table_schema = 'rows'",
            )
        )
        return found


def word(chance: random.Random) -> str:
    return "".join(chance.choice("aßz 'é\\0") for _ in range(chance.randint(0, 12))) + str(chance.random())


def statement(chance: random.Random) -> tuple[str, tuple[object, ...]]:
    """A random change of the tables whose rows can be undone."""
    number, text = chance.randint(3, 10_000), word(chance)
    return chance.choice(
        [
            ("INSERT INTO `rows`.counted (word, n) VALUES (%s, %s)", (text, chance.randint(0, 1 << 63))),
            ("UPDATE `rows`.counted SET n = %s, word = %s ORDER BY id LIMIT 1", (number, text)),
            ("DELETE FROM `rows`.counted ORDER BY id DESC LIMIT 1", ()),
            ("UPDATE `rows`.counted SET id = id + 1000 ORDER BY id DESC LIMIT 2", ()),
            ("INSERT INTO `rows`.typed (a, b, f, l, o) VALUES (%s, %s, %s, %s, 5)", (number, text[-9:], 0.7, text)),
            ("UPDATE `rows`.typed SET f = f + 0.3, g = 1 / 3, t = NOW(6), z = REPEAT(%s, 3), m = 'q'", (text,)),
            ("UPDATE `rows`.typed SET a = a + 100, d = d * 3 WHERE a = 1", ()),
            ("DELETE FROM `rows`.typed WHERE a = 2", ()),
            ("INSERT INTO `rows`.parents VALUES (%s)", (number,)),
            ("REPLACE INTO `rows`.children VALUES (%s, %s)", (chance.randint(1, 9), chance.choice([1, 2, 3, None]))),
            ("DELETE FROM `rows`.children", ()),
            # JSON of MySQL is in no binlog that others can read: it stays as it was, or goes with its row.
            ("UPDATE `rows`.documents SET word = %s, id = id + 1000", (text,)),
            ("INSERT INTO `rows`.documents VALUES (%s, %s, '[1]')", (number, text)),
        ]
    )


def write_randomly(login: dict[str, Any], chance: random.Random) -> None:
    """Run some transactions, some of which are rolled back."""
    with connect(login) as here, here.cursor() as cursor:
        for _ in range(chance.randint(1, 11)):
            cursor.execute("BEGIN")
            for _ in range(chance.randint(1, 5)):
                with contextlib.suppress(pymysql.err.IntegrityError):
                    cursor.execute(*statement(chance))
            cursor.execute(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))


def test_a_reset_undoes_rows_to_the_same_state_and_replaces_the_data_where_that_is_not_certain(
    lab: Lab, filled: None
) -> None:
    before = everything()
    made = lab.zsnapdb("clone", "create", "main", "--name", "undone", "--json").json
    original = state(made)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    took, pid = [], made["clone"]["pid"]
    for _ in range(6):
        write_randomly(made, chance)
        began = time.monotonic()
        done = lab.zsnapdb("clone", "reset", "undone", "--json").json
        took.append(time.monotonic() - began)
        assert (done["reason"], done["clone"]["pid"]) == (None, pid), seed
        assert state(made) == original, seed
    print(f"{lab.flavour}: 6 resets by rows, median {sorted(took)[3]:.2f} s, longest {max(took):.2f} s")

    a_session_that_holds_locks_is_ended(lab, made, original)
    others_write_while_the_clone_is_reset(lab, made, original)

    # What no binlog has, or no transaction can take back, replaces the data; the address stays.
    for change, said in (
        ("DELETE FROM `rows`.owners", "changes rows of other tables"),
        ("CREATE TABLE `rows`.more (id INT)", "definition of a table differs"),
        ("DELETE FROM `rows`.old", "no plain InnoDB table"),
        # It goes to no binlog.
        ("ALTER TABLE `rows`.parted ADD PARTITION NO_WRITE_TO_BINLOG PARTITIONS 1", "definition of a table differs"),
        hidden(lab),
        (with_histogram(lab), "definition of a table differs"),
    ):
        with connect(made) as here:
            ask(here, change)
        planned = lab.zsnapdb("clone", "reset", "undone", "--plan", "--json").json
        assert (planned["undoes"], said in planned["reason"]) == (None, True), planned["reason"]
        done = lab.zsnapdb("clone", "reset", "undone", "--json").json
        assert (done["undone"], said in done["reason"]) == (None, True), done["reason"]
        assert done["clone"]["port"] == made["clone"]["port"]
        assert state(made) == original
    the_binlog_is_reset_by_its_user(lab, made, original)
    the_server_dies_when_the_undo_commits(lab, made, original)
    # After that a reset is by rows again. Statistics of rows that were undone are those of no rows.
    with connect(made) as here:
        words = ", ".join(f"('again {n}')" for n in range(90))
        ask(here, f"INSERT INTO `rows`.counted (word) VALUES {words}")
        here.commit()
        ask(here, "ANALYZE LOCAL TABLE `rows`.counted")
        assert known_rows(here) > 80
    assert lab.zsnapdb("clone", "reset", "undone", "--plan", "--json").json["undoes"] == 90
    assert lab.zsnapdb("clone", "reset", "undone", "--json").json["undone"] == 90
    assert state(made) == original
    with connect(made) as here:
        assert known_rows(here) < 20
    assert lab.zsnapdb("clone", "destroy", "undone").code == 0
    assert everything() == before


def hidden(lab: Lab) -> tuple[str, str]:
    """A statement that MySQL runs whole, and that another server would take for one that begins a transaction."""
    if lab.flavour == "mysql":
        return "/*M!100000 BEGIN */ TRUNCATE `rows`.counted", "no change of rows"
    return "TRUNCATE `rows`.counted", "no change of rows"


def with_histogram(lab: Lab) -> str:
    """A statement that leaves values of rows in statistics, and nothing in a binlog."""
    if lab.flavour == "mysql":
        # A column with a unique key of its own gets no histogram.
        return "ANALYZE LOCAL TABLE `rows`.documents UPDATE HISTOGRAM ON word"
    return "ANALYZE LOCAL TABLE `rows`.counted PERSISTENT FOR ALL"


def known_rows(here: pymysql.Connection) -> int:
    """Return how many rows the statistics of the table have."""
    if ask(here, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
        ask(here, "SET SESSION information_schema_stats_expiry = 0")
    return int(ask(here, "SELECT table_rows FROM information_schema.tables WHERE table_name = 'counted'")[0][0])


def the_binlog_is_reset_by_its_user(lab: Lab, made: dict[str, Any], original: dict[str, Any]) -> None:
    """What was written before is in no binlog, and the new one has the name and perhaps the length of the old."""
    with connect(made) as here:
        ask(here, "UPDATE `rows`.counted SET n = 4")
        number = int(str(ask(here, "SHOW BINARY LOGS")[-1][0]).rpartition(".")[2])
        reset = "RESET BINARY LOGS AND GTIDS" if lab.flavour == "mysql" else "RESET MASTER"
        ask(here, f"{reset} TO {number}")
        ask(here, "UPDATE `rows`.counted SET n = 5")
    done = lab.zsnapdb("clone", "reset", "undone", "--json").json
    assert (done["undone"], "another file than it was" in done["reason"]) == (None, True), done["reason"]
    assert state(made) == original


DIES = """
import os, signal, sys
from pathlib import Path
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import catalogue, reset
from zsnapdb.mysql.session import Session

settings, query, killed = load(Path(sys.argv[1])), Session.query, []
pid = catalogue.find(settings, THIS_HOST, "undone").pid

def dies(session, sql, *parameters):
    if sql == "COMMIT" and not killed:
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)
    return query(session, sql, *parameters)

Session.query = dies
done = reset.reset(settings, THIS_HOST, "undone", None, SILENT)
sys.exit(0 if (killed, done.undone, done.reason != "") == ([pid], None, True) else f"{killed} {done}")
"""
"""A reset whose server is killed when the undo commits."""


def the_server_dies_when_the_undo_commits(lab: Lab, made: dict[str, Any], original: dict[str, Any]) -> None:
    """Nobody knows then what the server will find in its log: the data is replaced."""
    with connect(made) as here:
        ask(here, "UPDATE `rows`.counted SET n = 6")
    done = subprocess.run([sys.executable, "-c", DIES, str(CONFIG)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert state(made) == original


def a_session_that_holds_locks_is_ended(lab: Lab, made: dict[str, Any], original: dict[str, Any]) -> None:
    with connect(made) as here, here.cursor() as cursor:
        cursor.execute("UPDATE `rows`.counted SET n = 7")
        here.commit()
        cursor.execute("BEGIN")
        cursor.execute("UPDATE `rows`.counted SET n = 8")
        cursor.execute("SELECT GET_LOCK('mine', 0)")
        done = lab.zsnapdb("clone", "reset", "undone", "--json").json
        assert done["reason"] is None
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute("COMMIT")
    assert state(made) == original


def others_write_while_the_clone_is_reset(lab: Lab, made: dict[str, Any], original: dict[str, Any]) -> None:
    """Clients that come back at once: whatever way is taken, what they wrote before the end of the reset is gone."""
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            try:
                with connect(made) as here:
                    ask(here, "INSERT INTO `rows`.counted (word) VALUES (UUID())")
                    here.commit()
            except pymysql.err.MySQLError:
                time.sleep(0.01)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        done = lab.zsnapdb("clone", "reset", "undone", "--json").json
    finally:
        ends.set()
        for writer in writers:
            writer.join()
    print(f"beside writers: {done['undone']} undone, {done['reason']}")
    assert lab.zsnapdb("clone", "reset", "undone").code == 0
    assert state(made) == original
