"""A server and a running copy of it archive and back up under one instance name.

No command leaves out transactions of the server in silence: what cannot be reached is refused until a history is named.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.gtid import contains

from .in_guest import Done, Lab, next_second, remove, run, started, zfs

COPY = """set -e
umount /var/lib/mysql/data /var/lib/mysql
zfs mount tank/copy
zfs mount tank/copy/data
for folder in /run/mysqld /run/zsnapdb /var/lib/zsnapdb /var/cache/zsnapdb; do
    mkdir -p "$0$folder" $folder
    mount --bind "$0$folder" $folder
done
chown mysql: /run/mysqld
exec "$@"
"""
"""Starts the server of the copy, which has its own datasets at the paths of production, and its own state folders."""
NEWCOMER = 'for folder in /var/lib /var/cache; do mount -t tmpfs none $folder/zsnapdb; done; exec zsnapdb "$@"'
"""Runs a command as a host that has no record of the repository."""


@dataclass(frozen=True)
class Copy:
    """A second host: its server, in a mount namespace of its own, and its configuration."""

    server: subprocess.Popen[bytes]
    socket: str
    config: Path

    def insert(self, *numbers: int) -> None:
        with ledger.connect(self.socket, "root", "", None) as connection, connection.cursor() as cursor:
            for number in numbers:
                cursor.execute(f"INSERT INTO ledger.written VALUES ({number})")

    def zsnapdb(self, *words: str) -> dict[str, Any]:
        argv = ("nsenter", "-m", "-t", str(self.server.pid), "zsnapdb", *words, "--json")
        return run(*argv, env={"ZSNAPDB_CONFIG": str(self.config)}).json


@dataclass(frozen=True)
class Production:
    """The server of the guest, with a signed repository that the copy also uses."""

    lab: Lab
    config: Path
    newcomer: Path

    def zsnapdb(self, *words: str) -> Done:
        return self.lab.zsnapdb(*words, "--json", config=self.config)

    def insert(self, *numbers: int) -> None:
        for number in numbers:
            self.lab.sql(f"INSERT INTO ledger.written VALUES ({number})")

    def archive(self) -> dict[str, Any]:
        return self.zsnapdb("binlog", "archive", "main", "--once").json

    def histories(self) -> list[str]:
        return [one["id"] for one in self.zsnapdb("binlog", "status", "main").json["incarnations"]]

    def plan(self, to: str) -> Done:
        return self.zsnapdb("restore", "main", "--to", to, "--plan")

    def plan_elsewhere(self, to: str) -> Done:
        """Return the plan of a host with the same key that stored nothing."""
        words = ("restore", "main", "--to", to, "--plan", "--json")
        return run("unshare", "-m", "sh", "-c", NEWCOMER, "sh", *words, env={"ZSNAPDB_CONFIG": str(self.newcomer)})

    def since(self, *objectives: str) -> list[datetime]:
        """Return the times from which the objectives count."""
        judged = json.loads(self.zsnapdb("status", "main").stdout)["objectives"]
        return [datetime.fromisoformat(one["since"]) for one in judged if one["objective"] in objectives]

    def restored(self, *words: str) -> list[int]:
        """Return the rows after a restore to `latest`."""
        done = self.zsnapdb("restore", "main", "--to", "latest", "--target", "tank/latest", *words).json
        try:
            with started(self.lab, done) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT number FROM ledger.written ORDER BY number")
                return [number for (number,) in cursor.fetchall()]
        finally:
            remove("tank/latest")


@pytest.fixture
def production(lab: Lab, tmp_path: Path) -> Iterator[Production]:
    key = tmp_path / "signing"
    (made,) = lab.zsnapdb("key", "generate", "--signing-key", str(key), "--json").json["keys"]
    signed = f'encryption = {{ signing_key_file = "{key}", signers = ["{made["signer"]}"] }}'
    objectives = '[instance.main.objectives]\nrpo = "1d"\nbackup_age = "1d"\narchive_lag = "1d"\n\n'
    config = lab.elsewhere(
        ('url = "s3://backups/lab"', f'url = "s3://backups/writers"\n{signed}'),
        ("[repository.s3]", f"{objectives}[repository.s3]"),
    )
    newcomer = tmp_path / "newcomer.toml"
    text = config.read_text().replace('volumes = { parent = "tank/mysql", data = "tank/mysql/data" }\n', "")
    newcomer.write_text(text.replace('"/run/mysqld/mysqld.sock"', '"/nonexistent"'))
    lab.sql("CREATE TABLE ledger.written (number INT PRIMARY KEY)")
    yield Production(lab, config, newcomer)
    lab.sql("DROP TABLE ledger.written")


@contextlib.contextmanager
def copied(production: Production, folder: Path) -> Iterator[Copy]:
    """Start a copy of the server, with the same identity, from a snapshot of its datasets."""
    config, socket = folder / "copy.toml", f"{folder}/run/mysqld/mysqld.sock"
    config.write_text(production.config.read_text().replace('"tank/mysql', '"tank/copy'))
    zfs("snapshot", "-r", "tank/mysql@copy")
    zfs("clone", "-o", "canmount=noauto", "-o", "mountpoint=/var/lib/mysql", "tank/mysql@copy", "tank/copy")
    zfs("clone", "-o", "canmount=noauto", "tank/mysql/data@copy", "tank/copy/data")
    namespace = ("unshare", "-m", "--propagation", "private", "sh", "-c", COPY, str(folder))
    options = ("--defaults-file=/etc/lab.cnf", "--port=3307", "--log-error=/run/mysqld/copy.log")
    server = subprocess.Popen([*namespace, production.lab.server, *options], stdin=subprocess.DEVNULL)
    try:
        ledger.connect_when_up(socket, server).close()
        yield Copy(server, socket, config)
    finally:
        server.terminate()
        server.wait(300)
        for name in ("tank/copy", "tank/mysql@copy"):
            zfs("destroy", "-r", name)


def check_refused(done: Done, code: int, *histories: str) -> None:
    """Check that the command was refused, and that the message names `--history` and each history."""
    said = done.stdout + done.stderr
    assert (done.code, "--history" in said) == (code, True), said
    assert [one for one in histories if one not in said] == [], said


def commit_by_turns(production: Production, copy: Copy) -> str:
    """Return a time between commits of both servers. MariaDB rounds the times of commits to seconds."""
    production.insert(3)
    copy.insert(1001)
    next_second()
    moment = f"{next_second():%Y-%m-%dT%H:%M:%SZ}"
    next_second()
    copy.insert(1002)
    return moment


def test_nothing_of_a_server_is_left_out_in_silence(production: Production, tmp_path: Path) -> None:
    production.insert(1)
    assert production.zsnapdb("backup", "main").code == 0
    production.insert(2)
    archived = production.archive()["gtids"]
    with copied(production, tmp_path) as copy:
        begun = datetime.now(UTC)
        moment = commit_by_turns(production, copy)
        copy.zsnapdb("binlog", "archive", "main", "--once")
        copy.zsnapdb("backup", "main")
        # The copy went on in the history of production, but production's own backup and binlogs are older.
        (shared,) = production.histories()
        assert max(production.since("rpo", "backup-age", "archive-lag")) <= begun
        planned = production.plan("latest").json
        flavour = Flavour(production.lab.flavour)
        assert contains(parse_gtids(flavour, planned["point"]["gtids"]), parse_gtids(flavour, archived))

        production.insert(4)
        production.archive()
        (_, own) = production.histories()
        assert {one["incarnation"] for one in production.plan("latest").json["binlogs"]} == {own}
        assert production.restored() == [1, 2, 3, 4]
        check_refused(production.plan_elsewhere("latest"), 7, shared, own)
        check_refused(production.plan(moment), 2, shared, own)

        # The newest history is that of the copy, and production's record alone shows what it lacks.
        copy.insert(1003)
        copy.zsnapdb("binlog", "archive", "main", "--once")
        (_, _, other) = production.histories()
        check_refused(production.plan("latest"), 7, own, other)
        assert production.restored("--history", own) == [1, 2, 3, 4]

        production.insert(5)
        assert production.zsnapdb("backup", "main").code == 0
        production.insert(6)
        production.archive()
        assert production.plan_elsewhere("latest").code == 0
        assert production.restored() == [1, 2, 3, 4, 5, 6]
