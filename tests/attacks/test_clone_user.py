"""The user of a clone tries to get every privilege in it and, with every privilege, to reach production from there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.system.in_guest import Lab, ask, connect, run
from tests.system.test_clone_contract import Upstream

pytestmark = pytest.mark.usefixtures("first")

PARENT = Path("/var/lib/mysql")
BINLOG = re.compile(r"binlog\.([0-9]+|index)")


@pytest.fixture(scope="module")
def clone(lab: Lab, first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = lab.zsnapdb("clone", "create", "main", "--name", "hostile", "--admin", "--json").json
    yield made
    assert lab.zsnapdb("clone", "destroy", "hostile").code == 0


@pytest.fixture
def admin(clone: dict[str, Any]) -> Iterator[pymysql.Connection]:
    """A session with every privilege in the clone."""
    with connect(clone) as connection:
        yield connection


def production_files() -> dict[str, str]:
    """The hash of every binlog of production and of their list, and the name of every other file.

    Production writes other files by itself, MariaDB the indices of its binlogs too.
    """
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if BINLOG.fullmatch(path.name) else ""
        for path in PARENT.rglob("*")
        if path.is_file() and ".zfs" not in path.parts
    }


@pytest.fixture
def untouched() -> Iterator[None]:
    before = production_files()
    yield
    assert production_files() == before


def newest_binlog() -> Path:
    return max(PARENT.glob("binlog.[0-9]*"))


def production_pid() -> int:
    return int(Path("/run/mysqld/mysqld.pid").read_text())


def target_of(name: str) -> str:
    return {
        "the binlog": f"{newest_binlog()}",
        "the list of binlogs": f"{PARENT}/binlog.index",
        "a new file": f"{PARENT}/planted",
        "a new file beside the data": f"{PARENT}/data/planted",
        "a file by production's process": f"/proc/{production_pid()}/cwd/planted",
        "the binlog by production's process": f"/proc/{production_pid()}/root{newest_binlog()}",
    }[name]


@pytest.mark.parametrize(
    "target",
    [
        "the binlog",
        "the list of binlogs",
        "a new file",
        "a new file beside the data",
        "a file by production's process",
        "the binlog by production's process",
    ],
)
@pytest.mark.parametrize("log", ["general_log", "slow_query_log"])
def test_a_log_of_the_clone_is_not_written_to_production(
    admin: pymysql.Connection, untouched: None, log: str, target: str
) -> None:
    write_log(admin, log, target)


def write_log(admin: pymysql.Connection, log: str, target: str) -> None:
    """Try to let the clone's server write a log to a file of production."""
    with contextlib.suppress(pymysql.MySQLError):
        ask(admin, f"SET GLOBAL {log}_file = '{target_of(target)}'")
        ask(admin, f"SET GLOBAL {log} = ON")
        ask(admin, "SET SESSION long_query_time = 0")
        ask(admin, "SELECT 'this destroys a binlog'")
        ask(admin, "FLUSH LOGS")
    ask(admin, f"SET GLOBAL {log} = OFF")


@pytest.mark.parametrize("statement", ["SELECT 1 INTO OUTFILE '{}'", "SELECT 1 INTO DUMPFILE '{}'"])
@pytest.mark.parametrize("target", ["a new file", "a file by production's process"])
def test_rows_of_the_clone_are_not_written_to_production(
    admin: pymysql.Connection, untouched: None, statement: str, target: str
) -> None:
    with pytest.raises(pymysql.MySQLError):
        ask(admin, statement.format(target_of(target)))


def test_a_table_of_the_clone_holds_no_file_of_production(admin: pymysql.Connection, untouched: None) -> None:
    ask(admin, "CREATE DATABASE IF NOT EXISTS hostile")
    with pytest.raises(pymysql.MySQLError):
        ask(admin, "CREATE TABLE hostile.a (id INT PRIMARY KEY) DATA DIRECTORY = '/var/lib/mysql/data'")


@pytest.mark.parametrize("file", ["/etc/passwd", "/etc/lab.cnf", "/var/lib/mysql/binlog.index"])
def test_the_clone_reads_no_file_of_the_host(admin: pymysql.Connection, file: str) -> None:
    assert ask(admin, f"SELECT LOAD_FILE('{file}')") == [(None,)]
    ask(admin, "CREATE DATABASE IF NOT EXISTS hostile")
    ask(admin, "CREATE TABLE IF NOT EXISTS hostile.lines (line TEXT)")
    with pytest.raises(pymysql.MySQLError):
        ask(admin, f"LOAD DATA INFILE '{file}' INTO TABLE hostile.lines")


def test_the_clone_calls_nobody(lab: Lab, admin: pymysql.Connection) -> None:
    """Not even a neighbour on this host: production listens there too."""
    with Upstream() as upstream:
        if lab.flavour == "mysql":
            ask(
                admin,
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={upstream.port}, SOURCE_USER='a'",
            )
        else:
            ask(admin, f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={upstream.port}, MASTER_USER='a'")
        start, stop, reset, show = (
            ("START REPLICA", "STOP REPLICA", "RESET REPLICA ALL", "SHOW REPLICA STATUS")
            if lab.flavour == "mysql"
            else ("START SLAVE", "STOP SLAVE", "RESET SLAVE ALL", "SHOW SLAVE STATUS")
        )
        ask(admin, start)
        try:
            deadline = time.monotonic() + 300
            while not upstream.calls and not _last_error(admin, show) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert upstream.calls == 0
            assert "connect" in _last_error(admin, show)
        finally:
            ask(admin, stop)
            ask(admin, reset)


def _last_error(connection: pymysql.Connection, show: str) -> str:
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(show)
        (row,) = cursor.fetchall()
    return str(row["Last_IO_Error"])


@pytest.fixture(scope="module")
def ordinary(lab: Lab, first: dict[str, Any]) -> Iterator[pymysql.Connection]:
    """A session of the users of a clone that was made without `--admin`."""
    made = lab.zsnapdb("clone", "create", "main", "--name", "ordinary", "--json").json
    with connect(made) as connection:
        yield connection
    assert lab.zsnapdb("clone", "destroy", "ordinary").code == 0


STATEMENTS = {
    "writes a file": "SELECT 1 INTO OUTFILE '/tmp/planted'",
    "reads a file": "LOAD DATA INFILE '/etc/passwd' INTO TABLE ledger.accounts",
    "changes a log": "SET GLOBAL general_log_file = '/tmp/planted'",
    "changes a variable": "SET GLOBAL event_scheduler = ON",
    "changes its binlog": "SET SESSION sql_log_bin = 0",
    "stops the server": "SHUTDOWN",
    "loads a plugin": "INSTALL PLUGIN planted SONAME 'planted.so'",
    "loads a function": "CREATE FUNCTION planted RETURNS STRING SONAME 'planted.so'",
    "names another server": "CREATE SERVER planted FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1')",
    "makes an account": "CREATE USER planted@localhost",
    "takes the account of zsnapdb": "SET PASSWORD FOR zsnapdb_internal@localhost = 'planted-Pw-1'",
    "drops the account of zsnapdb": "DROP USER zsnapdb_internal@localhost",
    "gives itself rights": "GRANT FILE ON *.* TO CURRENT_USER()",
    "gives itself rights on a schema": "GRANT ALL ON mysql.* TO CURRENT_USER()",
    "acts as zsnapdb": "CREATE DEFINER = zsnapdb_internal@localhost PROCEDURE ledger.planted() SHUTDOWN",
    "makes a table of the server": "CREATE TABLE mysql.planted (id INT)",
    "drops the schema of the server": "DROP SCHEMA mysql",
    "reads functions' files": "INSERT INTO mysql.func VALUES ('planted', 0, 'planted.so', 'function')",
    "changes its rights on schemas": "UPDATE mysql.db SET drop_priv = 'Y'",
    "removes its limits": "DELETE FROM mysql.db WHERE db = 'mysql'",
    "empties the tables of rights": "TRUNCATE TABLE mysql.db",
    "lets a routine of the server run as its definer": "ALTER PROCEDURE sys.execute_prepared_stmt SQL SECURITY DEFINER",
    "replaces a routine of the server": "DROP PROCEDURE sys.execute_prepared_stmt",
    "moves a table among those of the server": "RENAME TABLE ledger.accounts TO mysql.accounts",
}
OF_MYSQL = {
    # MariaDB demands no right for it; there the sandbox alone says which folders exist.
    "moves a table to another folder": "CREATE TABLE ledger.away (id INT) DATA DIRECTORY = '/tmp'",
    "loads a component": "INSTALL COMPONENT 'file://component_planted'",
    "keeps a variable": "SET PERSIST max_connections = 7",
    "reads the accounts": "SELECT * FROM mysql.user",
    "changes the accounts": "UPDATE mysql.user SET super_priv = 'Y'",
    "replicates": "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1'",
    "copies another server": "CLONE INSTANCE FROM a@'127.0.0.1':3306 IDENTIFIED BY 'x'",
}
OF_MARIADB = {
    "loads plugins of a file": "INSTALL SONAME 'planted'",
    "reads the accounts": "SELECT * FROM mysql.global_priv",
    "changes the accounts": "UPDATE mysql.global_priv SET priv = JSON_SET(priv, '$.access', 1073741823)",
    "replicates": "CHANGE MASTER TO MASTER_HOST = '127.0.0.1'",
}
_DENIED = (1044, 1045, 1142, 1227, 1290, 1370, 1410, 1698, 3879)
"""Numbers of the errors that say that a right is missing."""


def test_users_of_a_clone_cannot_change_its_server_or_their_rights(lab: Lab, ordinary: pymysql.Connection) -> None:
    wrong = {}
    for what, statement in (STATEMENTS | (OF_MYSQL if lab.flavour == "mysql" else OF_MARIADB)).items():
        try:
            ask(ordinary, statement)
            wrong[what] = "it works"
        except pymysql.MySQLError as error:
            if error.args[0] not in _DENIED:
                wrong[what] = str(error)
    assert wrong == {}
    assert ask(ordinary, "SELECT LOAD_FILE('/etc/passwd')") == [(None,)]


def test_users_of_a_clone_have_all_of_its_schemas_and_make_their_own(ordinary: pymysql.Connection) -> None:
    for statement in (
        "CREATE DATABASE own_schema",
        "USE own_schema",
        "CREATE TABLE one (id INT PRIMARY KEY, note TEXT)",
        "CREATE TRIGGER filled BEFORE INSERT ON one FOR EACH ROW SET NEW.note = 'by trigger'",
        "INSERT INTO one (id) VALUES (1)",
        "CREATE VIEW seen AS SELECT * FROM one",
        "CREATE PROCEDURE named() SELECT * FROM seen",
        "CREATE EVENT later ON SCHEDULE EVERY 1 DAY DO DELETE FROM one",
        "CREATE TEMPORARY TABLE passing SELECT * FROM seen",
        "ALTER TABLE ledger.accounts ADD COLUMN of_clone INT",
        "UPDATE ledger.accounts SET of_clone = 1",
        "FLUSH TABLES WITH READ LOCK",
        "UNLOCK TABLES",
        "SHOW PROCESSLIST",
    ):
        ask(ordinary, statement)
    assert ask(ordinary, "SELECT * FROM seen") == [(1, "by trigger")]
    assert ask(ordinary, "CALL named()") == [(1, "by trigger")]
    ask(ordinary, "DROP DATABASE own_schema")


def test_rights_stay_after_a_reset_and_lost_passwords_are_replaced(lab: Lab, first: dict[str, Any]) -> None:
    made = lab.zsnapdb("clone", "create", "main", "--name", "rightful", "--json").json
    try:
        for lost in ("client.cnf", "internal.cnf"):
            assert lab.zsnapdb("clone", "stop", "rightful").code == 0
            Path(made["clone"]["mount"], ".zsnapdb", lost).unlink()
            done = lab.zsnapdb("clone", "start", "rightful")
            assert done.code == 0, done.stderr
            assert lab.zsnapdb("clone", "commit", "rightful", "-m", f"without {lost}").code == 0
        assert lab.zsnapdb("clone", "reset", "rightful").code == 0
        login = lab.zsnapdb("clone", "connect", "rightful", "--json").json
        with connect({**made, **login}) as here:
            for statement in ("SHUTDOWN", "UPDATE mysql.db SET drop_priv = 'Y'"):
                with pytest.raises(pymysql.MySQLError) as error:
                    ask(here, statement)
                assert error.value.args[0] in _DENIED
            assert ask(here, "SELECT COUNT(*) FROM ledger.accounts") != []
    finally:
        assert lab.zsnapdb("clone", "destroy", "rightful").code == 0


OWN_ACCOUNT = "zsnapdb-clone"


@pytest.fixture
def apart(lab: Lab) -> Iterator[Path]:
    """A configuration whose clones run under an account of their own."""
    config = lab.changed(("[repository.s3]", f'[clones]\nserver_user = "{OWN_ACCOUNT}"\n\n[repository.s3]'))
    missing = f"the account {OWN_ACCOUNT} of clones.server_user does not exist"
    assert missing in lab.zsnapdb("doctor", "main", config=config).stdout
    done = run("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", OWN_ACCOUNT)
    assert done.code == 0, done.stderr
    yield config
    run("userdel", OWN_ACCOUNT)


def test_a_clone_with_an_account_of_its_own_reaches_no_file_of_production(
    lab: Lab, apart: Path, untouched: None
) -> None:
    """A link that production's account made gives the clone nothing that is not its own."""
    victim, link = Path("/srv/of-root"), PARENT / "leads-out"
    victim.mkdir()
    link.symlink_to(victim)
    os.chown(link, *_ids("mysql"), follow_symlinks=False)
    try:
        words = ("clone", "create", "main", "--from", "live", "--name", "apart", "--admin", "--json")
        made = lab.zsnapdb(*words, config=apart).json
        try:
            _started_under(made, OWN_ACCOUNT)
            _without_sandbox(lab, apart, made)
            # Without the setting the server has production's account again, and the files are given back.
            assert lab.zsnapdb("clone", "stop", "apart").code == 0
            started = lab.zsnapdb("clone", "start", "apart", "--json")
            _started_under(started.json, "mysql")
        finally:
            assert lab.zsnapdb("clone", "destroy", "apart").code == 0
        assert victim.stat().st_uid == 0
    finally:
        link.unlink()
        victim.rmdir()


def _ids(name: str) -> tuple[int, int]:
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


def _started_under(made: dict[str, Any], account: str) -> None:
    uid, _ = _ids(account)
    mount = Path(made["clone"]["mount"])
    assert f"Uid:\t{uid}\t" in Path(f"/proc/{made['clone']['pid']}/status").read_text()
    files = [mount, *(file for file in mount.rglob("*") if ".zfs" not in file.parts)]
    assert [file for file in files if file.lstat().st_uid not in (0, uid)] == []


def _without_sandbox(lab: Lab, apart: Path, made: dict[str, Any]) -> None:
    """Attack from the clone without its sandbox: permissions alone keep it from production."""
    assert lab.zsnapdb("clone", "stop", "apart", config=apart).code == 0
    text = apart.read_text().replace("[instance.main.server]\n", '[instance.main.server]\nsandbox = "off"\n')
    bare = apart.with_name("bare.toml")
    bare.write_text(text)
    assert lab.zsnapdb("clone", "start", "apart", config=bare).code == 0
    with connect(made) as admin:
        for target in ("the binlog", "the list of binlogs", "a new file", "a new file beside the data"):
            write_log(admin, "general_log", target)
