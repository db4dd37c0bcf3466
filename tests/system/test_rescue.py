"""A table or schema is rescued into a file or the live server; nothing is overwritten, nothing else changes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside.ledger import BALLAST_ROWS
from zsnapdb.mysql.binlog.transactions import transactions

from .in_guest import SOCKET, Lab, zfs

LIVE = f"mysql://root@localhost/ledger?socket={SOCKET}"
CONTENT = "SELECT COUNT(*), SUM(id), SUM(CRC32(body)), SUM(parent) FROM {}"


@pytest.fixture(scope="module")
def precious(lab: Lab) -> Iterator[dict[str, Any]]:
    """A backup with a table as it was before somebody's mistake (`then`), and the mistake."""
    lab.sql("CREATE DATABASE shop")
    lab.sql("CREATE TABLE shop.customers (id INT PRIMARY KEY)")
    lab.sql(
        "CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, body VARBINARY(200), parent INT, weight FLOAT"
        " NOT NULL DEFAULT 1234567, FOREIGN KEY (parent) REFERENCES customers (id))"
    )
    lab.sql("INSERT INTO shop.customers VALUES (1), (2), (3)")
    lab.sql(
        "INSERT INTO shop.orders (body, parent) VALUES "
        + ", ".join(f"(UNHEX(SHA2({number}, 512)), {number % 3 + 1})" for number in range(300))
    )
    lab.sql("CREATE TRIGGER shop.keep BEFORE DELETE ON shop.orders FOR EACH ROW SET @deleted = OLD.id")
    lab.sql("CREATE VIEW shop.open_orders AS SELECT * FROM shop.orders WHERE id > 100")
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    then = lab.sql(CONTENT.format("shop.orders"))
    lab.sql("DELETE FROM shop.orders WHERE id > 7")
    yield {"backup": backup["backup_id"], "then": then}
    lab.sql("DROP DATABASE shop")


@pytest.fixture(autouse=True)
def nothing_stays(precious: dict[str, Any]) -> Iterator[None]:
    yield
    assert [name for name in zfs("list", "-H", "-o", "name") if "/rescue-" in name] == []
    assert list(Path("/var/lib/zsnapdb").rglob("rescue-*")) == []
    assert subprocess.run(["pgrep", "-f", "defaults-file=.*/rescue-"], check=False).returncode == 1


def client(lab: Lab) -> list[str]:
    return [("/opt/mysql/bin/mysql" if lab.flavour == "mysql" else "mariadb"), "-uroot", f"-S{SOCKET}"]


def test_a_table_comes_back_as_a_dump_that_drops_nothing(lab: Lab, precious: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "orders.sql"
    words = ("rescue", "main", "--table", "shop.orders", "--to", precious["backup"], "--into", str(file))
    assert lab.zsnapdb(*words, "--plan", "--json").json["source"] == "clone"
    rescue = lab.zsnapdb(*words, "--json").json
    assert "digits of the FLOAT columns orders.weight" in rescue["left_out"][-1]
    assert (rescue["source"], file.stat().st_mode & 0o777, list(tmp_path.iterdir())) == ("clone", 0o600, [file])
    assert not {"DROP TABLE", "CREATE TABLE IF", "TRIGGER"} & set(
        re.findall("DROP TABLE|CREATE TABLE IF|TRIGGER", file.read_text(errors="replace"))
    )
    again = lab.zsnapdb(*words)
    assert (again.code, "exists" in again.stderr) == (8, True)
    lab.sql("CREATE DATABASE loaded")
    try:
        lab.sql("CREATE TABLE loaded.customers AS SELECT * FROM shop.customers")
        lab.sql("ALTER TABLE loaded.customers ADD PRIMARY KEY (id)")
        with file.open() as dump:
            subprocess.run([*client(lab), "loaded"], stdin=dump, check=True)
        assert lab.sql(CONTENT.format("loaded.orders")) == precious["then"]
    finally:
        lab.sql("DROP DATABASE loaded")


def test_what_was_committed_a_moment_ago_is_in_no_archive_and_comes_back_all_the_same(
    lab: Lab, precious: dict[str, Any], tmp_path: Path
) -> None:
    lab.sql("CREATE TABLE shop.late (id INT PRIMARY KEY)")
    lab.sql("INSERT INTO shop.late VALUES (1), (2), (3)")
    lab.sql("DROP TABLE shop.late")
    listing = lab.zsnapdb("binlog", "find", "main", "--table", "shop.late", "--kind", "ddl", "--json").json
    gtid = listing["transactions"][-1]["gtid"]
    file = tmp_path / "late.sql"
    point = f"before-{gtid}"
    done = lab.zsnapdb("rescue", "main", "--table", "shop.late", "--to", point, "--into", str(file), "--json")
    assert done.json["object"] == "shop.late"
    assert re.search(r"\(1\),\s*\(2\),\s*\(3\)", file.read_text())
    assert "the server's own binlogs on this host are used" in done.stderr


def test_a_tablespace_moves_into_the_live_server(lab: Lab, precious: dict[str, Any]) -> None:
    words = (
        "rescue",
        "main",
        "--table",
        "ledger.ballast",
        "--to",
        precious["backup"],
        "--into",
        LIVE,
        "--as",
        "moved",
        "--transport",
        "tablespace",
        "--json",
    )
    before = lab.sql("SELECT COUNT(*), SUM(CRC32(body)) FROM ledger.ballast")
    rescue = lab.zsnapdb(*words).json
    try:
        assert (rescue["source"], rescue["transport"], rescue["rows"]) == (
            "clone",
            "tablespace",
            {"ledger.moved": BALLAST_ROWS},
        )
        assert lab.sql("SELECT COUNT(*), SUM(CRC32(body)) FROM ledger.moved") == before
        assert lab.sql("CHECK TABLE ledger.moved")[-1][-1] == "OK"
        assert list(Path("/var/lib/mysql/data/ledger").glob("moved.cfg")) == []
    finally:
        # Its binlog never heard of the table.
        subprocess.run([*client(lab), "-e", "SET SESSION sql_log_bin = 0; DROP TABLE ledger.moved"], check=True)


def test_rights_that_the_account_lacks_are_named_before_anything_is_made(lab: Lab, precious: dict[str, Any]) -> None:
    into = ("rescue", "main", "--table", "shop.orders", "--to", precious["backup"], "--into-instance", "main")
    for more in (("--plan",), ()):
        refused = lab.zsnapdb(*into, "--as", "again", "--user", "zsnapdb", *more)
        assert (refused.code, "lacks CREATE, DROP, INSERT on shop" in refused.stderr) == (4, True), refused.stderr
    done = lab.zsnapdb(*into, "--as", "again")
    try:
        assert "clone of the snapshots on this host" in done.stdout
        assert lab.sql(CONTENT.format("shop.again")) == precious["then"]
    finally:
        lab.sql("DROP TABLE shop.again")


def test_a_schema_comes_back_under_another_name_and_a_wrong_name_is_refused(lab: Lab, precious: dict[str, Any]) -> None:
    rescue = lab.zsnapdb(
        "rescue", "main", "--schema", "shop", "--to", precious["backup"], "--into", LIVE, "--as", "shop_then", "--json"
    ).json
    try:
        assert rescue["rows"] == {"customers": 3, "orders": 300}
        assert "view open_orders" in rescue["left_out"]
        assert lab.sql("SELECT COUNT(*) FROM shop_then.orders") == [(300,)]
        tables = lab.sql("SHOW TABLES IN ledger")
        done = lab.zsnapdb("rescue", "main", "--table", "shop.order", "--into", LIVE)
        assert (done.code, "there was no table shop.order" in done.stderr, "customers" in done.stderr) == (
            4,
            True,
            True,
        )
        assert lab.sql("SHOW TABLES IN ledger") == tables
    finally:
        lab.sql("DROP DATABASE shop_then")


def test_a_table_comes_back_as_it_was_right_before_a_mistake_hours_after_the_backup(
    lab: Lab, precious: dict[str, Any]
) -> None:
    """Only the archived binlogs have the rows that were written after the backup."""
    lab.sql("CREATE TABLE shop.notes (id INT PRIMARY KEY AUTO_INCREMENT, body VARBINARY(200), parent INT)")
    lab.sql(
        "INSERT INTO shop.notes (body, parent) VALUES "
        + ", ".join(f"(UNHEX(SHA2({number}, 256)), {number})" for number in range(50))
    )
    then = lab.sql(CONTENT.format("shop.notes"))
    lab.sql("DELETE FROM shop.notes WHERE id > 7")
    lab.zsnapdb("binlog", "archive", "main", "--once", "--json").json  # noqa: B018 - asserts success
    index = Path("/var/lib/mysql/binlog.index").read_text().split()
    newest = Path("/var/lib/mysql") / Path(index[-1]).name
    with newest.open("rb") as file:
        mistake = [transaction.gtid for transaction in transactions(file, newest.name)][-1]
    assert mistake is not None
    words = (
        "rescue",
        "main",
        "--table",
        "shop.notes",
        "--to",
        f"before-{mistake}",
        "--into",
        LIVE,
        "--as",
        "shop.saved",
    )
    plan = lab.zsnapdb(*words, "--plan").stdout
    assert mistake in plan
    rescue = lab.zsnapdb(*words, "--json").json
    try:
        assert rescue["rows"] == {"shop.saved": 50}
        assert lab.sql(CONTENT.format("shop.saved")) == then
        assert lab.sql("SELECT COUNT(*) FROM shop.notes") == [(7,)]
    finally:
        lab.sql("DROP TABLE shop.saved, shop.notes")


def test_a_table_comes_back_into_the_live_server_from_the_repository_alone(lab: Lab, precious: dict[str, Any]) -> None:
    for dataset in ("tank/mysql", "tank/mysql/data"):
        zfs("destroy", f"{dataset}@zsnapdb-{precious['backup']}")
    words = (
        "rescue",
        "main",
        "--table",
        "shop.orders",
        "--to",
        precious["backup"],
        "--into",
        LIVE,
        "--as",
        "shop.again",
    )
    rescue = lab.zsnapdb(*words, "--json").json
    try:
        assert (rescue["source"], rescue["transport"], rescue["rows"]) == ("restore", "dump", {"shop.again": 300})
        assert "binlog" in rescue["reason"]
        assert [what.split()[0] for what in rescue["left_out"]] == ["trigger", "foreign"]
        lab.sql(rescue["left_out"][1].partition("to add it: ")[2])
        assert "REFERENCES `customers` (`id`)" in lab.sql("SHOW CREATE TABLE shop.again")[0][1]
        assert lab.sql(CONTENT.format("shop.again")) == precious["then"]
        assert lab.sql("SELECT DISTINCT weight * 1e0 FROM shop.again") == [(1234567.0,)]
        assert lab.sql("SELECT COUNT(*) FROM shop.orders") == [(7,)]
        taken = lab.zsnapdb(*words)
        assert (taken.code, "has a table shop.again" in taken.stderr) == (8, True)
    finally:
        lab.sql("DROP TABLE shop.again")
