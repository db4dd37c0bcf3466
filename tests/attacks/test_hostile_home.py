"""The home directory and environment of the person who runs zsnapdb lead clients and dumps to production."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.system.in_guest import SERVER, Done, Lab, ask, remove, run
from zsnapdb.zfs.mounts import namespace_of

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
OWN = {"PATH", "HOME", "LC_ALL", "LANGUAGE", "MYSQL_TEST_LOGIN_FILE", "TZ"}
ZONE = "Australia/Adelaide"
TIMES = "SELECT *, @@system_time_zone FROM shop.times ORDER BY id"


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
    loader = {"LD_PRELOAD": "/nonexistent/preload.so", "LD_LIBRARY_PATH": "/nonexistent"}
    more = {"TMPDIR": "/nonexistent", "TZ": "Asia/Tokyo", "MYSQL_GROUP_SUFFIX": "_x", "UMASK": "0777"}
    return {**names, **files, **loader, **more}


@pytest.fixture
def production_elsewhere(lab: Lab) -> Iterator[None]:
    """Run production in another time zone than that of the host, as a line in its unit does."""
    del lab
    for zone in ({"TZ": ZONE}, {}):
        assert run(SERVER, "stop").code == 0
        assert run(SERVER, "start", env=zone).code == 0
        if zone:
            yield


@pytest.fixture
def orders(lab: Lab, production_elsewhere: None) -> Iterator[None]:
    """Have three rows on production under a limit that cuts lists."""
    for statement in (
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
        "INSERT INTO shop.orders VALUES (1), (2), (3)",
        "CREATE TABLE shop.times (id INT PRIMARY KEY, at TIMESTAMP NULL, local TIMESTAMP NULL)",
        "INSERT INTO shop.times VALUES (1, '2026-01-15 22:30:00', '2026-01-15 22:30:00')",
        "SET GLOBAL sql_select_limit = 1",
    ):
        lab.sql(statement)
    yield
    lab.sql("SET GLOBAL sql_select_limit = 18446744073709551615")
    lab.sql("DROP DATABASE shop")


@pytest.mark.usefixtures("orders")
def test_a_hostile_home_leads_nowhere(lab: Lab, hostile: dict[str, str], tmp_path: Path) -> None:
    def zsnapdb(*words: str) -> Done:
        return run("prlimit", "--nofile=64:64", "zsnapdb", *words, env=hostile)

    assert zsnapdb("backup", "main").code == 0
    made = zsnapdb("clone", "create", "main", "--name", "dev", "--ttl", "1h", "--json")
    assert made.code == 0, made.stderr
    pid = json.loads(made.stdout)["clone"]["pid"]
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    # Python, which starts the sandbox, sets the one; the shell that is the program of the server in the lab, the other.
    assert {line.partition("=")[0] for line in environment if line} - {"LC_CTYPE", "PWD"} <= OWN
    assert f"TZ={ZONE}" in environment
    # A server that cannot open its files would call them damaged.
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    assert int(next(line.split()[4] for line in limits if line.startswith("Max open files"))) >= 1024
    shown = zsnapdb("clone", "connect", "dev", "-N", "-B", "-e", TIMES)
    assert shown.stdout.split("\n")[0].split("\t") == [str(word) for word in lab.sql(TIMES)[0]], shown.stderr
    gone = zsnapdb("clone", "connect", "dev", "-e", "DELETE FROM shop.orders; SELECT COUNT(*) FROM shop.orders")
    assert (gone.code, gone.stdout.split()[-1]) == (0, "0"), gone.stderr
    assert zsnapdb("clone", "connect", "dev", "--host=localhost", "-e", "DELETE FROM shop.orders").code == 2
    assert [tuple(row) for row in lab.sql("SELECT COUNT(*) FROM shop.orders")] == [(3,)]
    file = tmp_path / "orders.sql"
    assert zsnapdb("rescue", "main", "--table", "shop.orders", "--into", str(file)).code == 0
    assert "(1),(2),(3)" in "".join(file.read_text().split())
    assert zsnapdb("clone", "destroy", "dev").code == 0


@pytest.mark.usefixtures("orders")
def test_a_replay_by_a_client_beside_a_hostile_home_writes_to_the_copy(lab: Lab, hostile: dict[str, str]) -> None:
    config = lab.changed(("[repository.s3]", '[restore]\nreplay = "client"\n\n[repository.s3]'))

    def zsnapdb(*words: str) -> Done:
        return run("zsnapdb", *words, "--config", str(config), env=hostile)

    assert zsnapdb("backup", "main").code == 0
    lab.sql("INSERT INTO shop.orders VALUES (4)")
    # Local times become texts, by the time zone of the server that runs the statement.
    lab.sql("ALTER TABLE shop.times MODIFY local DATETIME NULL")
    assert zsnapdb("binlog", "archive", "main", "--once").code == 0
    words = ("restore", "main", "--to", "latest", "--target", "tank/home", "--handover", "run", "--json")
    restored = zsnapdb(*words)
    assert restored.code == 0, restored.stderr
    assert [tuple(row) for row in lab.sql("SELECT COUNT(*) FROM shop.orders")] == [(4,)]
    socket = Path(json.loads(restored.stdout)["option_file"]).parent / "server.sock"
    with pymysql.connect(unix_socket=str(socket), user="root") as copy:
        assert ask(copy, "SELECT COUNT(*) FROM shop.orders") == [(4,)]
        assert ask(copy, TIMES) == lab.sql(TIMES)
    remove("tank/home")


@pytest.fixture
def container() -> Iterator[tuple[str, ...]]:
    """Yield the words that run a command in a mount namespace whose mounts no other one sees."""
    with subprocess.Popen(["unshare", "-m", "--propagation", "private", "sleep", "1000"]) as holder:
        deadline = time.monotonic() + 60
        while namespace_of(holder.pid) in ("", namespace_of(os.getpid())):
            assert time.monotonic() < deadline, "unshare made no mount namespace"
            time.sleep(0.02)
        yield "nsenter", "-m", "-t", str(holder.pid)
        holder.kill()


def state_of_box(listed: Done) -> tuple[int | None, str | None]:
    (clone,) = listed.json["clones"]
    return clone["pid"], clone["elsewhere"]


def test_a_server_of_a_clone_in_a_container_is_not_called_stopped(lab: Lab, container: tuple[str, ...]) -> None:
    assert lab.zsnapdb("backup").code == 0
    made = run(*container, "zsnapdb", "clone", "create", "main", "--name", "box", "--ttl", "1h", "--json").json
    for words in (("connect", "box", "-e", "SELECT 1"), ("start", "box"), ("stop", "box")):
        refused = lab.zsnapdb("clone", *words)
        # A second server would have begun on the files of the first.
        assert (refused.code, f"runs as process {made['clone']['pid']} in another" in refused.stderr) == (5, True)
    there = f"as process {made['clone']['pid']} in another mount namespace"
    assert state_of_box(lab.zsnapdb("clone", "list", "--json")) == (None, there)
    assert f"running {there}" in lab.zsnapdb("clone", "show", "box").stdout
    # A process of a new PID namespace sees the files of the clone, and none of the processes outside.
    inside = (*container, "unshare", "--pid", "--fork", "--mount-proc", "zsnapdb")
    assert state_of_box(run(*inside, "clone", "list", "--json")) == (None, "in another PID namespace")
    assert "runs in another PID namespace" in run(*inside, "clone", "start", "box").stderr
    assert run(*container, "zsnapdb", "clone", "destroy", "box").code == 0


def test_a_tree_that_is_bound_for_a_container_is_backed_up_where_the_server_uses_it(lab: Lab, tmp_path: Path) -> None:
    assert run("mount", "--rbind", "/var/lib/mysql", str(tmp_path)).code == 0
    try:
        # The newest of several mounts was taken for the volume, on which no path of the server lies.
        done = lab.zsnapdb("backup")
        assert done.code == 0, done.stderr
    finally:
        assert run("umount", "-R", str(tmp_path)).code == 0
