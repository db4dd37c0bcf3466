"""What a transaction changed is shown as rows, and undone exactly: all of it, or nothing if a row was changed since."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger

from .in_guest import SOCKET, Lab, next_second, zfs

COLUMNS = (
    "id INT PRIMARY KEY, a TINYINT, b SMALLINT UNSIGNED, c MEDIUMINT, d BIGINT UNSIGNED, e DECIMAL(30,11), f FLOAT,"
    " g DOUBLE, h DATE, i TIME(3), j DATETIME(6), k TIMESTAMP(2) NULL, l YEAR, m CHAR(10), n CHAR(200) CHARACTER SET"
    " utf8mb4, o VARCHAR(50) CHARACTER SET latin1, p VARCHAR(2000), q BINARY(6), r VARBINARY(300), s TINYBLOB, t BLOB,"
    " u MEDIUMTEXT, v LONGTEXT, w ENUM('x','y'), x SET('x','y','z'), y BIT(11), virtual_one INT AS (id + 1) VIRTUAL,"
    " stored_one INT AS (id * 2) STORED, z TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"
)
NAMES = "id, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z"
LEAST_AND_MOST = (
    "1, -128, 65535, -8388608, 18446744073709551615, -1234567890123456789.12345678901, 0.1, 1e-300, '2026-11-20',"
    " '-838:59:59.000', '9999-12-31 23:59:59.499999', '1970-01-02 00:00:01.99', 2155, 'char', 'é𝄞', 'é',"
    " 'it''s; -- \\\\', X'610000', X'00FF27', X'', REPEAT('b', 1000), REPEAT('ü', 30000), 'end', 'y', 'x,z',"
    " b'10000000001', '2020-01-01 00:00:00'"
)
EMPTY = (
    "2, 0, 0, 0, 0, 0, -0.0, 0, '0000-00-00', '00:00:00', '0000-00-00 00:00:00', '2038-01-19 03:14:06.5', 0, '', '',"
    " '', ' ', X'', X'', X'', X'', '', '', 'x', '', b'0', '2038-01-19 03:14:07'"
)
ROWS = (LEAST_AND_MOST, EMPTY, *[f"{number}{', NULL' * 25}, '2020-01-01 00:00:00'" for number in (3, 0)])
COMPRESSION = {
    "mysql": "SET SESSION binlog_transaction_compression = {}",
    "mariadb": "SET GLOBAL log_bin_compress = {}",
}


@pytest.fixture
def shop(lab: Lab) -> Iterator[Any]:
    """A cursor on a schema with a table of every type that is read; the account may see triggers."""
    lab.sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE undone")
        cursor.execute("USE undone")
        cursor.execute("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE wide ({COLUMNS}) ENGINE=InnoDB")
        cursor.execute("CREATE TABLE `o``dd` (`k``y` VARCHAR(20), n INT, PRIMARY KEY (`k``y`, n)) ENGINE=InnoDB")
        for row in ROWS:
            cursor.execute(f"INSERT INTO wide ({NAMES}) VALUES ({row})")
        cursor.execute("INSERT INTO `o``dd` VALUES ('Key', 1), ('other', 2)")
        assert lab.zsnapdb("snapshot", "main").code == 0
        next_second()
        yield cursor
        cursor.execute("DROP DATABASE undone")
    lab.sql("REVOKE TRIGGER ON *.* FROM zsnapdb@localhost")


def state(cursor: Any) -> list[Any]:
    """Every byte of every row."""
    every = ", ".join(f"HEX(CAST({name} AS BINARY))" for name in (*NAMES.split(", "), "virtual_one", "stored_one"))
    cursor.execute(f"SELECT {every} FROM wide ORDER BY id")
    rows = list(cursor.fetchall())
    cursor.execute("SELECT HEX(`k``y`), n FROM `o``dd` ORDER BY 1, 2")
    return [*rows, *cursor.fetchall()]


def accident(lab: Lab, cursor: Any) -> str:
    """A transaction with every kind of change, also several of one row. Return its GTID."""
    for statement in (
        "BEGIN",
        "UPDATE wide SET a = 1, e = 2.5, j = NOW(6), p = 'changed', q = X'62', u = NULL, y = 1 WHERE id IN (1, 3)",
        "UPDATE wide SET id = id + 10 WHERE id >= 2",
        "DELETE FROM wide WHERE id < 12",
        "INSERT INTO wide (id, p) VALUES (1, 'new')",
        "UPDATE `o``dd` SET `k``y` = LOWER(`k``y`)",
        "DELETE FROM `o``dd` WHERE n = 2",
        "COMMIT",
    ):
        cursor.execute(statement)
    words = ("binlog", "find", "main", "--json", "--table", "undone.wide", "--kind", "delete", "--limit", "1")
    (entry,) = lab.zsnapdb(*words).json["transactions"]
    return str(entry["gtid"])


def run_script(lab: Lab, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    client = "/opt/mysql/bin/mysql" if lab.flavour == "mysql" else "mariadb"
    with file.open() as text:
        return subprocess.run(
            [client, "-uroot", f"-S{SOCKET}", *options], stdin=text, capture_output=True, text=True, timeout=60
        )


def test_a_transaction_is_undone_exactly_with_every_type_also_compressed(lab: Lab, shop: Any, tmp_path: Path) -> None:
    setting = COMPRESSION[lab.flavour]
    before = state(shop)
    shop.execute(setting.format("ON"))
    gtid = accident(lab, shop)
    shop.execute(setting.format("OFF"))
    left = state(shop)
    file = tmp_path / "undo.sql"
    words = ("undo", "main", "--gtid", gtid, "--into", str(file))
    shown = lab.zsnapdb(*words, "--json").json
    # Each row once, with what is left of its changes.
    kinds = Counter(change["kind"] for change in shown["changes"])
    assert (kinds, shown["conflicts"], shown["tried"]) == ({"delete": 4, "update": 2, "insert": 2}, [], True)
    assert (state(shop), lab.zsnapdb(*words).code) == (left, 8)
    shop.execute("UPDATE wide SET p = 'NEW', z = z WHERE id = 1")
    newer = state(shop)
    for options in ((), ("--force",)):
        done = run_script(lab, file, *options)
        # With --force the client ignores every error, and ends with success.
        assert done.returncode != 0 or options
        assert "nothing was undone" in done.stderr + done.stdout or "Duplicate entry" in done.stderr
        assert state(shop) == newer
    shop.execute("UPDATE wide SET p = 'new', z = z WHERE id = 1")
    altered = tmp_path / "altered.sql"
    altered.write_text(
        re.sub(r"UNIX_TIMESTAMP\(create_time\) = \d+", "UNIX_TIMESTAMP(create_time) = 1", file.read_text())
    )
    assert "nothing was undone" in run_script(lab, altered, "--force").stdout
    assert state(shop) == left
    done = run_script(lab, file)
    assert (done.returncode, "were undone" in done.stdout) == (0, True), done.stderr
    assert state(shop) == before


def live_sets() -> set[str]:
    """Return the snapshots that were created for clones of the present state."""
    listed = zfs("list", "-H", "-t", "snapshot", "-o", "name,zsnapdb:state")
    return {line.partition("\t")[0] for line in listed if line.endswith("\tlive")}


def test_a_transaction_is_undone_on_the_server_itself_after_it_passed_on_a_clone(lab: Lab, shop: Any) -> None:
    before = state(shop)
    gtid = accident(lab, shop)
    left = state(shop)
    words = ("undo", "main", "--gtid", gtid, "--apply")
    unasked = lab.zsnapdb(*words)
    assert (unasked.code, "add --yes" in unasked.stderr) == (2, True), unasked.stderr
    shop.execute("CREATE USER reader@localhost")
    shop.execute("GRANT SELECT ON undone.* TO reader@localhost")
    denied = lab.zsnapdb(*words, "--yes", "--user", "reader")
    assert (denied.code, "nothing was undone" in denied.stderr) == (4, True), denied.stderr
    shop.execute("DROP USER reader@localhost")
    shop.execute("SET GLOBAL read_only = ON")
    replica = lab.zsnapdb(*words, "--yes")
    shop.execute("SET GLOBAL read_only = OFF")
    assert (replica.code, "has read_only" in replica.stderr) == (4, True), replica.stderr
    assert state(shop) == left
    # A server whose volumes are not configured, as after setup.
    discovered = lab.changed(('volumes = { parent = "tank/mysql", data = "tank/mysql/data" }\n', ""))
    live = live_sets()
    shown = lab.zsnapdb(*words, "--yes", "--json", config=discovered).json
    assert (shown["tried"], shown["applied"], len(shown["changes"])) == (True, True, 8)
    assert state(shop) == before
    assert live_sets() == live
    again = lab.zsnapdb(*words, "--yes")
    assert (again.code, "rows were changed since" in again.stderr) == (4, True), again.stderr
    assert state(shop) == before


# Which rows differ is decided from rows in one form. That those of each server are read right, the tests before show.
@pytest.mark.any_server
def test_a_row_that_was_changed_since_prevents_the_undo_and_is_named(lab: Lab, shop: Any, tmp_path: Path) -> None:
    assert lab.zsnapdb("backup", "main").code == 0
    gtid = accident(lab, shop)
    shop.execute("UPDATE wide SET p = 'NEW' WHERE id = 1")
    shop.execute("INSERT INTO wide (id) VALUES (3)")
    left = state(shop)
    file = tmp_path / "undo.sql"
    shown = lab.zsnapdb("undo", "main", "--gtid", gtid, "--json").json
    assert [(entry["key"], entry["reason"]) for entry in shown["conflicts"]] == [
        ({"id": "1"}, "differs"),
        ({"id": "3"}, "exists-again"),
    ]
    refused = lab.zsnapdb("undo", "main", "--gtid", gtid, "--into", str(file))
    assert (refused.code, "2 of 9 rows were changed since" in refused.stderr) == (4, True), refused.stderr
    assert (file.exists(), state(shop)) == (False, left)
    text = lab.zsnapdb("undo", "main", "--gtid", gtid).stdout
    assert "differs from what the transaction left" in text
    before, dumped = text.split("show the rows before the transaction:\n")[1].strip().split("\n")
    answer = lab.zsnapdb(*shlex.split(before)[1:], "--json")
    assert sorted(row[0] for row in answer.json["rows"]) == [1, 3], answer.stderr
    saved = str(tmp_path / "wide.sql")
    rescued = lab.zsnapdb(*[saved if word == "FILE" else word for word in shlex.split(dumped)[1:]])
    assert (rescued.code, Path(saved).exists()) == (0, True), rescued.stderr


def test_what_cannot_be_proved_or_would_change_other_rows_is_refused(lab: Lab, shop: Any) -> None:
    gtid = accident(lab, shop)
    lab.sql("REVOKE TRIGGER ON *.* FROM zsnapdb@localhost")
    assert "the privilege TRIGGER" in lab.zsnapdb("undo", "main", "--gtid", gtid, "--user", "zsnapdb").stderr
    assert lab.zsnapdb("undo", "main", "--gtid", gtid).code == 0, "root sees them"
    lab.sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    shop.execute("CREATE TRIGGER more AFTER INSERT ON wide FOR EACH ROW SET @x = 1")
    refused = lab.zsnapdb("undo", "main", "--gtid", gtid)
    assert (refused.code, "triggers" in refused.stderr) == (4, True), refused.stderr


MISREAD = {
    "misread.`café`": (
        "id INT PRIMARY KEY, a INT, b INT",
        "1, 10, 20",
        ("ALTER TABLE misread.`café` MODIFY a INT AFTER b",),
    ),
    "misread.`ba``ck`": (
        "id INT PRIMARY KEY, a INT, b INT",
        "1, 10, 20",
        ("ALTER TABLE misread.`ba``ck` MODIFY a INT AFTER b",),
    ),
    "misread.exchanged": (
        "id INT PRIMARY KEY, a INT, b INT",
        "1, 10, 20",
        ("SET sql_log_bin = 0", "ALTER TABLE misread.exchanged MODIFY a INT AFTER b", "SET sql_log_bin = 1"),
    ),
    "misread.reordered": (
        "id INT PRIMARY KEY, state ENUM('paid', 'void')",
        "1, 'paid'",
        (
            "SET sql_log_bin = 0",
            "ALTER TABLE misread.reordered MODIFY state ENUM('void', 'paid')",
            "SET sql_log_bin = 1",
        ),
    ),
    "misread.`signed`": (
        "id INT PRIMARY KEY, a INT",
        "1, -5",
        (
            "SET sql_log_bin = 0",
            "ALTER TABLE misread.`signed` MODIFY a INT UNSIGNED",
            "SET sql_log_bin = 1",
        ),
    ),
    "dropped.t": (
        "id INT PRIMARY KEY, a INT, b INT",
        "1, 10, 20",
        (
            "DROP DATABASE dropped",
            "CREATE DATABASE dropped",
            "SET sql_log_bin = 0",
            "CREATE TABLE dropped.t (id INT PRIMARY KEY, b INT, a INT) ENGINE=InnoDB",
            "SET sql_log_bin = 1",
        ),
    ),
}
"""Tables whose definition is changed after a transaction, in ways that no text in the binlog tells."""


def deletions(lab: Lab, count: int) -> list[dict[str, Any]]:
    """The newest transactions with a deleted row, in the order of the binlogs."""
    words = ("binlog", "find", "main", "--json", "--kind", "delete", "--limit", str(count))
    found: list[dict[str, Any]] = lab.zsnapdb(*words).json["transactions"]
    return found


def last_gtid(lab: Lab) -> str:
    """The GTID of the newest transaction with a deleted row."""
    (entry,) = deletions(lab, 1)
    return str(entry["gtid"])


@pytest.fixture
def misread(lab: Lab) -> Iterator[Any]:
    """A connection to a server with the tables of MISREAD, each with a row."""
    lab.sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        for name in ("misread", "dropped"):
            cursor.execute(f"CREATE DATABASE {name}")
        for table, (columns, row, _) in MISREAD.items():
            cursor.execute(f"CREATE TABLE {table} ({columns}) ENGINE=InnoDB")
            cursor.execute(f"INSERT INTO {table} VALUES ({row})")
        assert lab.zsnapdb("snapshot", "main").code == 0
        yield connection
        for name in ("misread", "dropped"):
            cursor.execute(f"DROP DATABASE {name}")
        cursor.execute("SET GLOBAL binlog_row_metadata = DEFAULT")
    lab.sql("REVOKE TRIGGER ON *.* FROM zsnapdb@localhost")


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
def test_no_value_is_written_into_a_column_that_was_another_one_in_the_transaction(
    lab: Lab, misread: Any, metadata: str
) -> None:
    found = {}
    with misread.cursor() as cursor:
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        for table in MISREAD:
            cursor.execute(f"DELETE FROM {table}")
        gtids = {}
        for name, entry in zip(MISREAD, deletions(lab, len(MISREAD)), strict=True):
            ((schema, table),) = [(part["schema"], part["table"]) for part in entry["tables"]]
            assert name.replace("``", "\0").replace("`", "").replace("\0", "`") == f"{schema}.{table}"
            gtids[name] = str(entry["gtid"])
        for table, (_, _, statements) in MISREAD.items():
            cursor.execute(f"SET NAMES {'latin1' if 'é' in table else 'utf8mb4'}")
            misread.encoding = "latin1" if "é" in table else "utf8"
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("SET NAMES utf8mb4")
            misread.encoding = "utf8"
            done = lab.zsnapdb("undo", "main", "--gtid", gtids[table], "--apply", "--yes")
            cursor.execute(f"SELECT * FROM {table}")
            found[table] = (cursor.fetchall(), done.code)
    assert found == dict.fromkeys(MISREAD, ((), 4))


def test_a_foreign_key_that_changed_rows_with_the_transaction_and_is_gone_prevents_the_undo(
    lab: Lab, shop: Any
) -> None:
    shop.execute("CREATE TABLE parent (id INT PRIMARY KEY) ENGINE=InnoDB")
    shop.execute(
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, CONSTRAINT up FOREIGN KEY (p) REFERENCES parent (id) ON DELETE"
        " CASCADE) ENGINE=InnoDB"
    )
    shop.execute("INSERT INTO parent VALUES (1)")
    shop.execute("INSERT INTO child VALUES (7, 1)")
    assert lab.zsnapdb("snapshot", "main").code == 0
    shop.execute("DELETE FROM parent")
    gtid = last_gtid(lab)
    shop.execute("ALTER TABLE child DROP FOREIGN KEY up")
    done = lab.zsnapdb("undo", "main", "--gtid", gtid, "--apply", "--yes")
    shop.execute("SELECT (SELECT COUNT(*) FROM parent), (SELECT COUNT(*) FROM child)")
    assert (done.code, shop.fetchall()) == (4, ((0, 0),)), (done.stdout, done.stderr)


DOCUMENTS = {"mysql": "binlog_row_value_options = PARTIAL_JSON", "mariadb": "binlog_row_image = NOBLOB"}


def test_documents_shapes_equal_rows_and_rows_that_foreign_keys_changed_are_undone_from_parts_in_the_binlog(
    lab: Lab, shop: Any
) -> None:
    shop.execute("CREATE TABLE parent (id INT PRIMARY KEY, j JSON, p POINT, t TEXT) ENGINE=InnoDB")
    shop.execute(
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON"
        " UPDATE CASCADE) ENGINE=InnoDB"
    )
    shop.execute("CREATE TABLE heap (a FLOAT, b VARCHAR(9)) ENGINE=InnoDB")
    shop.execute("INSERT INTO heap VALUES (0.1, 'one'), (0.1, 'one'), (0.1, 'one'), (-0.0, NULL), (0, NULL)")
    document = '{"a": 1, "b": [1.5, "é"], "c": "' + "x" * 200 + '"}'
    for number in (1, 2, 3):
        shop.execute("INSERT INTO parent VALUES (%s, %s, POINT(1, %s), 'text')", (number, document, number))
        shop.execute("INSERT INTO child VALUES (%s, %s), (%s, %s)", (number, number, number + 10, number))
    assert lab.zsnapdb("snapshot", "main").code == 0
    next_second()

    def rows() -> list[Any]:
        shop.execute("SELECT id, CAST(j AS CHAR), HEX(p), t FROM parent ORDER BY id")
        found = list(shop.fetchall())
        shop.execute("SELECT * FROM child ORDER BY id")
        found += shop.fetchall()
        shop.execute("SELECT CAST(a + 0e0 AS CHAR), b FROM heap ORDER BY 1, 2")
        return [*found, *shop.fetchall()]

    before = rows()
    for statement in (
        "SET SESSION binlog_row_image = MINIMAL",
        f"SET SESSION {DOCUMENTS[lab.flavour]}",
        "BEGIN",
        "UPDATE parent SET j = JSON_SET(j, '$.a', 7), p = POINT(5, 5), t = 'other' WHERE id = 1",
        "UPDATE parent SET id = 20 WHERE id = 2",
        "DELETE FROM parent WHERE id = 3",
        "DELETE FROM heap WHERE b = 'one' LIMIT 2",
        "UPDATE heap SET a = 5 WHERE b IS NULL LIMIT 1",
        "INSERT INTO heap VALUES (7, 'two')",
        "COMMIT",
    ):
        shop.execute(statement)
    assert len(rows()) == 10
    gtid = last_gtid(lab)
    done = lab.zsnapdb("undo", "main", "--gtid", gtid, "--apply", "--yes")
    assert (done.code, rows()) == (0, before), done.stderr
    for statement in ("BEGIN", "UPDATE parent SET t = '' WHERE id = 1", "DELETE FROM heap WHERE b = 'one'", "COMMIT"):
        shop.execute(statement)
    gtid = last_gtid(lab)
    shop.execute("UPDATE child SET p = 3 WHERE id = 11")
    shop.execute("DELETE FROM child WHERE id = 1")
    # A later change of a child row that the transaction left alone does not prevent the undo, and stays.
    later = [(row[0], 3) if row == (11, 1) else row for row in before if row != (1, 1)]
    done = lab.zsnapdb("undo", "main", "--gtid", gtid, "--apply", "--yes")
    assert (done.code, rows()) == (0, later), done.stderr
