"""Handover of a restored server.

The server becomes a replica that follows its source, replaces the old server, or starts on a host that never had the
instance.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.lab.inside import ledger
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.mysql.process.server import ServerProcess

from .in_guest import SERVER, SOCKET, Lab, remove, remove_datasets, run, zfs

pytestmark = pytest.mark.usefixtures("first")


@pytest.fixture
def account(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """Create an account for a replica on the guest's server; the file has its password."""
    lab.sql("CREATE USER replica@'127.0.0.1' IDENTIFIED BY 'Repl-1ca-x'")
    lab.sql("CREATE USER replica@localhost IDENTIFIED BY 'Repl-1ca-x'")
    for host in ("127.0.0.1", "localhost"):
        lab.sql(f"GRANT REPLICATION SLAVE ON *.* TO replica@'{host}'")
    file = tmp_path / "password"
    file.write_text("Repl-1ca-x\n")
    file.chmod(0o600)
    yield file
    for host in ("127.0.0.1", "localhost"):
        lab.sql(f"DROP USER replica@'{host}'")


def state(socket: str) -> ledger.State:
    with ledger.connect(socket, "root", "") as connection:
        return ledger.read_state(connection)


def test_a_restored_replica_has_caught_up_and_goes_on_following(
    lab: Lab, account: Path, load_running: ledger.Load
) -> None:
    # Of its own: between the first one and now other tests may have left incidents in the binlog, at which any replica
    # stops.
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    load_running.wait_for(20)
    # At its usual rate the load takes half of the guest's processor from the restore.
    load_running.rate = 4.0
    words = (
        "--to",
        backup["backup_id"],
        "--target",
        "tank/replica",
        "--handover",
        "replica",
        "--source",
        "127.0.0.1:3306",
        "--source-user",
        "replica",
    )
    restored = lab.zsnapdb("restore", "main", *words, "--source-password-file", str(account), "--json").json
    stack = contextlib.ExitStack()
    try:
        socket = f"{restored['mount']}/.zsnapdb/server.sock"
        load_running.wait_for(20)
        load_running.stop()
        source = state(SOCKET)
        deadline = time.monotonic() + 300
        while state(socket) != source:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with ledger.connect(socket) as connection, connection.cursor() as cursor:
            with pytest.raises(pymysql.MySQLError, match=r"read-only|read_only"):
                cursor.execute("INSERT INTO journal VALUES (99, 1)")
            cursor.execute("SELECT @@server_id")
            assert cursor.fetchone() not in [(1,), *lab.sql("SELECT @@server_id")]
        # Started again by its option file it is a replica still.
        process = ServerProcess(Path(restored["mount"]) / ".zsnapdb")
        process.stop(timeout=300)
        binary = "/opt/mysql/bin/mysqld" if lab.flavour == "mysql" else "/usr/sbin/mariadbd"
        again = stack.enter_context(
            subprocess.Popen([binary, f"--defaults-file={restored['option_file']}"], stdin=subprocess.DEVNULL)
        )
        stack.callback(again.terminate)
        with contextlib.closing(ledger.connect_when_up(socket, again)):
            lab.sql("UPDATE ledger.accounts SET balance = balance + 1 WHERE id = 1")
            lab.sql("UPDATE ledger.accounts SET balance = balance - 1 WHERE id = 1")
            lab.sql("CREATE TABLE ledger.followed (id INT)")
            deadline = time.monotonic() + 300
            while not _has_table(socket, "followed"):
                assert time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        stack.close()
        remove("tank/replica")
        lab.sql("DROP TABLE IF EXISTS ledger.followed")


def _has_table(socket: str, name: str) -> bool:
    with ledger.connect(socket, "root", "") as connection, connection.cursor() as cursor:
        return bool(cursor.execute(f"SHOW TABLES LIKE '{name}'"))


# What is exchanged is datasets, whichever server lies on them.
@pytest.mark.any_server
def test_a_promoted_restore_takes_the_place_of_the_old_one_which_is_kept(lab: Lab) -> None:
    # On one flavour from the snapshots on the host, on the other from the repository: what follows is the same.
    origin = "local" if lab.flavour == "mysql" else "repository"
    # In a repository of its own: for other tests this instance has one history.
    config = lab.elsewhere(('url = "s3://backups/lab"', 'url = "s3://backups/promoted"'))
    backup = lab.zsnapdb("backup", "--json", config=config).json["backup"]
    before = state(SOCKET)
    # MariaDB's commits have whole seconds as times: one of the second of the backup has no time of its own.
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.05)
    lab.sql("CREATE TABLE ledger.left_out (id INT)")
    left_out = lab.zsnapdb("binlog", "archive", "main", "--once", "--json", config=config).json["last_commit"]
    words: tuple[str, ...] = (
        "restore",
        "main",
        "--to",
        backup["backup_id"],
        "--target",
        "tank/promoted",
        "--handover",
        "promote",
        "--from",
        origin,
        "--json",
    )
    if lab.flavour == "mariadb":
        refused = lab.zsnapdb(*words, config=config)
        assert (refused.code, "would reuse GTIDs of the old server" in refused.stderr) == (4, True), refused.stderr
        words = (*words, "--server-id", "4711")
    still_running = lab.zsnapdb(*words, config=config)
    assert (still_running.code, "still runs: process" in still_running.stderr) == (4, True), still_running.stderr
    subprocess.run([SERVER, "stop"], check=True)
    try:
        done = lab.zsnapdb("restore", "main", "--resume", "--json", config=config).json
        (kept,) = [line.split()[6] for line in done["notes"] if line.startswith("the old tank/mysql is kept as")] or [
            ""
        ]
        kept = kept.rstrip(",")
        new = zfs("list", "-H", "-o", "name,mountpoint,mounted", "-r", "tank/mysql")
        assert new == ["tank/mysql\t/var/lib/mysql\tyes", "tank/mysql/data\t/var/lib/mysql/data\tyes"]
        assert zfs("list", "-H", "-o", "mounted", "-r", kept) == ["no", "no"]
        subprocess.run([SERVER, "start"], check=True)
        assert state(SOCKET) == before
        if lab.flavour == "mariadb":
            assert any("set server_id = 4711 in the option file" in note for note in done["notes"])
            check_that_two_histories_are_told_apart(lab, config, left_out)
        following = lab.zsnapdb("backup", "--json", config=config).json["backup"]
        assert following["full"] == (origin == "repository")
        if lab.flavour == "mysql":
            assert backup["position"]["gtids"].split(":")[0] in following["position"]["gtids"]
        assert zfs("get", "-H", "-o", "source", "zsnapdb:restored", "tank/mysql") == ["-"]
    finally:
        _back_to_the_old_one()
        lab.sql("DROP TABLE ledger.left_out")


def check_that_two_histories_are_told_apart(lab: Lab, config: Path, left_out: str) -> None:
    """Check what is said of a server that was started under its old server_id all the same.

    The table `left_out`, made at the time `left_out`, is in its old history alone.
    """
    lab.sql("CREATE TABLE ledger.instead (id INT)")
    (again,) = lab.zsnapdb("binlog", "archive", "main", "--once", "--json", config=config).json["repeated_gtids"]
    assert "gives GTIDs a second time" in lab.zsnapdb("doctor", "main", config=config).stdout
    histories = [
        part["id"] for part in lab.zsnapdb("binlog", "status", "main", "--json", config=config).json["incarnations"]
    ]
    assert histories[0] == again["history"]
    question = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'left_out'"
    words = ("query", "main", "--at", left_out, "--json")
    refused = lab.zsnapdb(*words, question, config=config)
    assert (refused.code, "lies in 2 histories" in refused.stderr) == (2, True), refused.stderr
    for history, count in zip(histories, (1, 0), strict=True):
        answer = lab.zsnapdb(*words, "--history", history, question, config=config).json
        assert (answer["rows"], answer["moment"]["exact"]) == ([[count]], True)
    unused = lab.changed(("[repository.s3]", '[clones]\nkeep_unused = "0s"\n\n[repository.s3]'))
    assert lab.zsnapdb("reap", config=unused).code == 0


def _back_to_the_old_one() -> None:
    """Put the first server of the guest back in its place, for the tests after this one."""
    subprocess.run([SERVER, "stop"], check=False)
    old = next(
        (
            name
            for name in zfs("list", "-H", "-o", "name", "-d", "1", "tank")
            if name.startswith("tank/mysql-replaced-")
        ),
        None,
    )
    if old is None:
        # It was never moved: the test has failed, and the tests after it need their server all the same.
        subprocess.run([SERVER, "start"], check=True)
        return
    was_promoted = run("zfs", "list", "tank/mysql").code == 0
    for dataset in ("tank/mysql/data", "tank/mysql") if was_promoted else ():
        if zfs("get", "-H", "-o", "value", "mounted", dataset) == ["yes"]:
            zfs("unmount", dataset)
        zfs("set", "canmount=noauto", dataset)
    if was_promoted:
        zfs("rename", "tank/mysql", "tank/was-promoted")
    zfs("rename", old, "tank/mysql")
    for dataset in ("tank/mysql", "tank/mysql/data"):
        if zfs("get", "-H", "-o", "value", "origin", dataset) != ["-"]:
            # A restore from the snapshots on the host has taken them over.
            zfs("promote", dataset)
    for dataset in ("tank/mysql", "tank/mysql/data"):
        zfs("set", "canmount=on", dataset)
        if zfs("get", "-H", "-o", "value", "mounted", dataset) == ["no"]:
            zfs("mount", dataset)
    if was_promoted:
        remove_datasets("tank/was-promoted")
    subprocess.run([SERVER, "start"], check=True)


@pytest.mark.any_server
def test_a_host_that_never_had_the_instance_restores_from_the_bucket_alone(lab: Lab, first: dict[str, Any]) -> None:
    volumes = 'volumes = { parent = "tank/mysql", data = "tank/mysql/data" }\n'
    config = lab.changed(('socket = "/run/mysqld/mysqld.sock"', 'socket = "/nonexistent"'), (volumes, ""))
    restored = lab.zsnapdb(
        "restore", "main", "--to", first["backup_id"], "--as", "elsewhere", "--handover", "run", "--json", config=config
    ).json
    try:
        assert restored["top"] == "tank/zsnapdb/restored/elsewhere"
        assert restored["gtids"] == first["position"]["gtids"]
        with pymysql.connect(
            host="127.0.0.1", port=restored["port"], user="app", password="lab-app", database="ledger"
        ) as connection:
            assert sum(ledger.read_state(connection).accounts.values()) == ledger.ACCOUNTS * ledger.INITIAL
        check_that_its_user_can_end_it(lab, config, restored)
    finally:
        if "tank/zsnapdb/restored/elsewhere" in zfs("list", "-H", "-o", "name"):
            remove("tank/zsnapdb/restored/elsewhere")


def check_that_its_user_can_end_it(lab: Lab, config: Path, restored: dict[str, Any]) -> None:
    top, pid = restored["top"], restored["pid"]
    words = ("restore", "main", "--abandon", "--target", top)
    command = f"`zsnapdb {' '.join(words)}`"
    login, stop, removal = restored["notes"][:3]
    assert (f"kill {pid}" in stop, command in removal) == (True, True), restored["notes"]
    client = login.partition("`")[2].strip("`").replace("--user=NAME --password", "--user=app --password=lab-app")
    subprocess.run([*client.split(), "-e", "SELECT 1"], check=True)
    listed = lab.zsnapdb("doctor", "main", config=config).stdout
    shown = (f"{top}: restored at" in listed, f"process {pid} serves it; {command} removes it" in listed)
    assert shown == (True, True), listed
    refused = lab.zsnapdb(*words, config=config)
    assert (refused.code, "hint: add --yes" in refused.stderr) == (2, True), refused.stderr
    assert lab.zsnapdb(*words, "--yes", config=config).code == 0
    assert top not in zfs("list", "-H", "-o", "name")
    assert not Path(f"/proc/{pid}").exists()
    assert f"{top}: restored at" not in lab.zsnapdb("doctor", "main", config=config).stdout
    assert lab.zsnapdb(*words, "--yes", config=config).code == 2


@pytest.mark.any_server
def test_a_host_without_the_datasets_gets_the_server_at_its_old_paths(lab: Lab, tmp_path: Path) -> None:
    """The host was lost. The new one has another pool, and a fresh server of the distribution at the old paths."""
    bucket = ('url = "s3://backups/lab"', 'url = "s3://backups/lost"')
    volumes = 'volumes = { parent = "tank/mysql", data = "tank/mysql/data" }\n'
    config = lab.changed(bucket, ('socket = "/run/mysqld/mysqld.sock"', 'socket = "/nonexistent"'), (volumes, ""))
    assert lab.zsnapdb("backup", config=lab.changed(bucket)).code == 0
    before = state(SOCKET)
    words = ("restore", "main", "--target", "second/restored", "--handover", "promote", "--json")
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, 2 << 30)
    zfs("rename", "-u", "tank/mysql", "tank/mysql-replaced-lost")
    fresh, record = Path("/var/lib/mysql/fresh"), THIS_HOST.put_backs / "main.json"
    recorded = record.read_bytes() if record.exists() else None
    assert run("zpool", "create", "-O", "mountpoint=none", "second", str(disk)).code == 0
    try:
        refused = lab.zsnapdb(*words, "--plan", config=config)
        assert (refused.code, "is mounted at /var/lib/mysql" in refused.stderr) == (4, True), refused.stderr
        subprocess.run([SERVER, "stop"], check=True)
        for dataset in ("tank/mysql-replaced-lost/data", "tank/mysql-replaced-lost"):
            zfs("set", "canmount=noauto", dataset)
            zfs("unmount", dataset)
        fresh.touch()
        done = lab.zsnapdb(*words, config=config).json
        assert any("files in /var/lib/mysql on this host will be hidden" in note for note in done["point"]["notes"])
        assert any("lost host had datadir = /var/lib/mysql/data, " in note for note in done["notes"]), done["notes"]
        assert zfs("list", "-H", "-o", "name,mountpoint,mounted", "-r", "second/mysql") == [
            "second/mysql\t/var/lib/mysql\tyes",
            "second/mysql/data\t/var/lib/mysql/data\tyes",
        ]
        subprocess.run([SERVER, "start"], check=True)
        assert state(SOCKET) == before
    finally:
        subprocess.run([SERVER, "stop"], check=False)
        run("zpool", "destroy", "-f", "second")
        fresh.unlink(missing_ok=True)
        _back_to_the_old_one()
        # This pool is gone, and with it what the record says of production.
        record.unlink(missing_ok=True)
        if recorded is not None:
            record.write_bytes(recorded)
