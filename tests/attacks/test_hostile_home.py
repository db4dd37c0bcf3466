"""The home directory and environment of the person who runs zsnapdb lead clients and dumps to production."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.in_guest import Done, Lab, run

FILES = (".my.cnf", ".mysqlrc", ".mylogin.cnf")
HOSTILE = """[client]
host=localhost
user=root
socket=/run/mysqld/mysqld.sock
[mysql]
init-command="SIGNAL SQLSTATE '45000'"
[mysqldump]
where=1=0
[mysqld]
port=1
"""
OWN = {"PATH", "HOME", "LC_ALL", "LANGUAGE", "MYSQL_TEST_LOGIN_FILE"}


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """Return variables that lead to production, and files in a home that do so, too."""
    home = tmp_path / "home"
    home.mkdir()
    for name in FILES:
        (home / name).write_text(HOSTILE)
        (home / name).chmod(0o600)
    names = {"MYSQL_HOST": "localhost", "MYSQL_TCP_PORT": "1", "MYSQL_UNIX_PORT": "/run/mysqld/mysqld.sock"}
    files = {"MYSQL_HOME": str(home), "MYSQL_TEST_LOGIN_FILE": str(home / ".mylogin.cnf"), "HOME": str(home)}
    return {**names, **files, "TMPDIR": "/nonexistent", "TZ": "Asia/Tokyo", "MYSQL_GROUP_SUFFIX": "_x", "UMASK": "0777"}


@pytest.fixture
def orders(lab: Lab) -> Iterator[None]:
    """Have three rows on production under a limit that cuts lists, and a backup of them."""
    for statement in (
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
        "INSERT INTO shop.orders VALUES (1), (2), (3)",
        "SET GLOBAL sql_select_limit = 1",
    ):
        lab.sql(statement)
    yield
    lab.sql("SET GLOBAL sql_select_limit = 18446744073709551615")
    lab.sql("DROP DATABASE shop")


@pytest.mark.usefixtures("orders")
def test_a_hostile_home_leads_nowhere(lab: Lab, hostile: dict[str, str], tmp_path: Path) -> None:
    def zsnapdb(*words: str) -> Done:
        return run("zsnapdb", *words, env=hostile)

    assert zsnapdb("backup", "main").code == 0
    made = zsnapdb("clone", "create", "main", "--name", "dev", "--ttl", "1h", "--json")
    assert made.code == 0, made.stderr
    pid = json.loads(made.stdout)["clone"]["pid"]
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    # Python, which starts the sandbox, sets the one; the shell that is the program of the server in the lab, the other.
    assert {line.partition("=")[0] for line in environment if line} - {"LC_CTYPE", "PWD"} <= OWN
    gone = zsnapdb("clone", "connect", "dev", "-e", "DELETE FROM shop.orders; SELECT COUNT(*) FROM shop.orders")
    assert (gone.code, gone.stdout.split()[-1]) == (0, "0"), gone.stderr
    assert zsnapdb("clone", "connect", "dev", "--host=localhost", "-e", "DELETE FROM shop.orders").code == 2
    assert [tuple(row) for row in lab.sql("SELECT COUNT(*) FROM shop.orders")] == [(3,)]
    file = tmp_path / "orders.sql"
    assert zsnapdb("rescue", "main", "--table", "shop.orders", "--into", str(file)).code == 0
    assert "(1),(2),(3)" in "".join(file.read_text().split())
    assert zsnapdb("clone", "destroy", "dev").code == 0
