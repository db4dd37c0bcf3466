"""A migration is tried on clones: which tables it touches, how long others wait, and what a second run does."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from .in_guest import SOCKET, Lab, everything

MIGRATION = """
import json, os, time
from urllib.parse import urlsplit
import pymysql
at = urlsplit(os.environ["DATABASE_URL"])
shop = pymysql.connect(host=at.hostname, port=at.port, user=at.username, password=at.password, database="shop",
                       autocommit=True).cursor()
assert (at.path, at.username) == ("/" + os.environ["ZSNAPDB_DATABASE"], os.environ["ZSNAPDB_USER"])
def timed(*statements):
    began = time.monotonic()
    for one in statements:
        shop.execute(one) if isinstance(one, str) else time.sleep(one)
    return time.monotonic() - began
truth = {}
shop.execute("UPDATE items SET n = n + 1 WHERE id = 7")
shop.execute("LOCK TABLES items WRITE")
truth["items"] = timed(1.5, "UNLOCK TABLES")
shop.execute("UPDATE stock SET n = n + 1 WHERE id = 7")
shop.execute("LOCK TABLES stock READ")
truth["stock"] = timed(2.5, "UNLOCK TABLES")
shop.execute("ALTER TABLE archive MODIFY note VARCHAR(9), ALGORITHM=COPY")
shop.execute("ALTER TABLE orders ADD COLUMN paid INT")
for code in ("TRIGGER counted BEFORE INSERT ON orders FOR EACH ROW SET NEW.n = 2", "PROCEDURE three() SELECT 3",
             "EVENT daily ON SCHEDULE EVERY 1 DAY STARTS '2026-01-01' DO DO 1"):
    shop.execute(f"CREATE {code}")
shop.execute("CREATE TABLE fresh (id INT PRIMARY KEY)")
with open("truth.json", "a") as file:
    print(json.dumps(truth), file=file)
"""
LIMITS = """
[instance.main.migration]
longest_write_wait = "1200ms"
repeatable = true

[repository.s3]
"""
BESIDE_A_LOAD = """
import json, os, sys, time
from urllib.parse import urlsplit
import pymysql
at = urlsplit(os.environ["DATABASE_URL"])
shop = pymysql.connect(host=at.hostname, port=at.port, user=at.username, password=at.password, database="shop",
                       autocommit=True).cursor()
def seen():
    shop.execute("SELECT SUM(n) FROM items")
    return int(shop.fetchone()[0])
first = seen()
shop.execute("LOCK TABLES items WRITE")
time.sleep(float(sys.argv[1]))
shop.execute("UNLOCK TABLES")
until = time.monotonic() + 8
while seen() == first and time.monotonic() < until:
    time.sleep(0.1)
try:
    pymysql.connect(unix_socket=os.environ["ZSNAPDB_SOCKET"], user="stranger", password="Aa1!aaaaaaaa")
    stranger = "comes in"
except pymysql.MySQLError as error:
    stranger = str(error)
with open("truth.json", "a") as file:
    print(json.dumps({"first": first, "last": seen(), "stranger": stranger}), file=file)
if "drop" in sys.argv:
    shop.execute("ALTER TABLE items DROP COLUMN n")
    time.sleep(3)
"""
KILLS_ITS_SERVER = """
import os, socket, struct
with socket.socket(socket.AF_UNIX) as to_server:
    to_server.connect(os.environ["ZSNAPDB_SOCKET"])
    pid, _, _ = struct.unpack("3i", to_server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
os.kill(pid, 9)
"""
NOISE = 0.1
"""What of a wait is not seen between two questions, in a guest that shares its processor with others (seconds)."""


@pytest.fixture(scope="module")
def shop(lab: Lab, first: dict[str, Any]) -> Iterator[None]:
    with pymysql.connect(unix_socket=SOCKET, user="root", autocommit=True) as server, server.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        for table in ("items", "stock", "archive", "orders", "untouched"):
            cursor.execute(f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, n INT, note VARCHAR(20))")
            cursor.executemany(f"INSERT INTO shop.{table} VALUES (%s, 1, 'x')", [(number,) for number in range(500)])
    yield
    lab.sql("DROP DATABASE shop")


def written_for(seconds: float) -> None:
    """Write to the shop ten times a second, and make an account that no clone must have."""
    with pymysql.connect(unix_socket=SOCKET, user="root", autocommit=True) as server, server.cursor() as cursor:
        cursor.execute("CREATE USER 'stranger'@'localhost' IDENTIFIED BY 'Aa1!aaaaaaaa'")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            cursor.execute("UPDATE shop.items SET n = n + 1 WHERE id = 3")
            time.sleep(0.1)
        cursor.execute("DROP USER 'stranger'@'localhost'")


@pytest.mark.usefixtures("shop")
def test_the_recorded_load_goes_on_beside_a_migration_at_its_pace_and_says_what_stopped_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "migrate.py"
    script.write_text(BESIDE_A_LOAD)
    began = time.monotonic()
    made = lab.zsnapdb("snapshot", "main", "--json").json["backup_id"]
    # A machine that is slow or busy takes longer until the migration is there, and the load must go on until its end.
    slowness = time.monotonic() - began
    length, locked = math.ceil(14 + 6 * slowness), 4 + slowness
    written_for(length + 5)
    before = everything()
    check = ("migration-check", "main", "--json", "--from", made, "--load")
    migration = ("--", "/opt/venv/bin/python", str(script), f"{locked}")
    assert "is 5 h old" in lab.zsnapdb(*check, "5h", *migration).stderr, "no clone is made of a set that is younger"
    (tmp_path / "mask.sql").write_text("UPDATE shop.items SET note = 'masked';\n")
    rules = f'[instance.main.masking]\nrequired = true\nrun = ["{tmp_path}/mask.sql"]\n\n[repository.s3]\n'
    masked = lab.changed(("[repository.s3]\n", rules))
    assert "masking hides" in lab.zsnapdb(*check, f"{length}s", *migration, config=masked).stderr

    done = lab.zsnapdb(*check, f"{length}s", *migration)
    assert done.code in (0, 11), done.stderr
    seen = json.loads(done.stdout)
    print(lab.flavour, seen["load"], seen["problems"])
    assert seen["failure"] == ""
    truth = json.loads((tmp_path / "truth.json").read_text().splitlines()[1])
    print(truth)
    assert seen["load"]["error"] == ""
    assert truth["last"] > truth["first"], "the load goes on while the migration runs"
    assert "1045" in truth["stranger"], "an account of production does not come along"
    # How many these are depends on how fast the machine is. The migration saw some of them.
    assert seen["load"]["transactions"] >= truth["last"] - truth["first"]
    assert not seen["load"]["through"], "it keeps its pace, and is not applied as fast as it goes"
    # A transaction was due in each tenth of a second. What came late before the migration is another matter.
    assert seen["load"]["late_seconds"] > locked - 1, "it waited for the lock"
    assert not [one for one in seen["problems"] if "load" in one]

    stopped = lab.zsnapdb(*check, f"{length}s", *migration, "drop")
    assert stopped.code == 11, stopped.stderr
    (problem,) = [one for one in json.loads(stopped.stdout)["problems"] if "the recorded load stops after" in one]
    print(lab.flavour, problem)
    assert everything() == before, "the clones are gone"


# What a statement waits for is told by both servers alike: 7 and 6 % from the truth at most, seen of both.
@pytest.mark.any_server
@pytest.mark.usefixtures("shop")
def test_a_migration_is_timed_beside_readers_and_writers_and_run_twice(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "migrate.py"
    script.write_text(MIGRATION)
    assert lab.zsnapdb("snapshot", "main").code == 0
    before, config = everything(), lab.changed(("[repository.s3]\n", LIMITS))
    check = ("migration-check", "main")
    assert lab.zsnapdb(*check).code == 2, "no command is named"
    assert lab.zsnapdb(*check, "--", "/no/such/program").code == 3
    done = lab.zsnapdb(*check, "--json", "--", "/opt/venv/bin/python", str(script), config=config)
    assert done.code == 11, done.stderr
    seen = json.loads(done.stdout)
    assert everything() == before, "the clones are gone"

    effects = {one["table"]: set(one["effects"]) for one in seen["tables"]}
    assert effects == {
        "shop.items": {"written"},
        "shop.stock": {"written"},
        "shop.archive": {"redefined", "rewritten"},
        "shop.orders": effects["shop.orders"],
        "shop.fresh": {"created"},
    }
    assert "redefined" in effects["shop.orders"]
    if lab.flavour == "mariadb":
        assert "rewritten" not in effects["shop.orders"], "a new .frm file is no copy of the rows"
    difference = seen["schema_difference"]
    assert "+  `paid` int" in difference
    assert all(f"+++ {name} after" in difference for name in ("trigger shop.counted", "procedure shop.three"))
    assert "+++ event shop.daily after" in difference
    assert "SET NEW.n = 2" in difference

    truth = json.loads((tmp_path / "truth.json").read_text().splitlines()[1])
    waits = {(one["table"], one["access"]): one for one in seen["waits"]}
    noise = NOISE + seen["without_table_seconds"]
    print(
        lab.flavour,
        f"noise {noise:.3f} s",
        truth,
        {key: round(one["longest_seconds"], 3) for key, one in waits.items()},
    )
    for table, access in (("items", "read"), ("items", "write"), ("stock", "write")):
        difference = waits[f"shop.{table}", access]["longest_seconds"] - truth[table]
        assert abs(difference) <= max(0.1 * truth[table], noise), (table, access, difference)
    assert waits["shop.stock", "read"]["longest_seconds"] < 0.9 * truth["stock"], "its readers go on"
    assert all(one["asked"] > 10 for one in waits.values())
    assert not [one for one in waits.values() if one["failed"]]

    assert seen["second_run"] == "fails", "the table is there already"
    assert [one for one in seen["problems"] if "a write of shop.items waits" in one], seen["problems"]
    assert "a second run fails" in seen["problems"][-1]

    script.write_text(KILLS_ITS_SERVER)
    down = lab.zsnapdb(*check, "--", "/opt/venv/bin/python", str(script), config=config)
    assert (down.code, "the clone's server does not answer after it" in down.stdout) == (11, True), down.stderr

    fails = lab.zsnapdb(*check, "--markdown", "--", "/bin/false", config=config)
    assert (fails.code, "the migration fails" in fails.stdout) == (11, True)
    assert everything() == before
