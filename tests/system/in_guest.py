"""What system tests use in their guest: commands, the server, ZFS, the store."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymysql

from tests.documents import check_printed
from tests.lab.inside import ledger
from tests.lab.inside.zygote import Zygote
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.store.base import Store
from zsnapdb.store.layers import open_store
from zsnapdb.zfs.command import run_when_free

CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
SOCKET = "/run/mysqld/mysqld.sock"
SERVER = "/checkout/tests/lab/inside/server"


@dataclass(frozen=True)
class Done:
    """A finished command: exit status and both outputs."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The document on stdout; fails the test with both outputs if the command failed."""
        assert self.code == 0, f"exit status {self.code}\n{self.stderr}\n{self.stdout}"
        document: dict[str, Any] = json.loads(self.stdout)
        return document


def run(*argv: str, timeout: float = 600.0, env: Mapping[str, str] | None = None) -> Done:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    return Done(done.returncode, done.stdout, done.stderr)


def end_process(pid: int) -> None:
    """Kill a process, which need not be a child, and wait until it is gone and its files and mounts are free."""
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def zfs(*words: str) -> list[str]:
    """Run it. What a killed server or `zfs send` had is busy until a moment after its end; that is waited for."""
    return run_when_free(["zfs", *words], patience=60).splitlines()


def everything() -> list[str]:
    """Return all datasets, snapshots and bookmarks with their GUIDs.

    The parent dataset of clones is left out: the first clone creates it.
    """
    home = ("tank/zsnapdb\t", "tank/zsnapdb/clones\t", "tank/zsnapdb/received\t", "tank/zsnapdb/prepared\t")
    return [line for line in zfs("list", "-H", "-p", "-t", "all", "-o", "name,guid") if not line.startswith(home)]


def holds() -> list[str]:
    snapshots = zfs("list", "-H", "-t", "snapshot", "-o", "name")
    return zfs("holds", "-H", *snapshots) if snapshots else []


def next_second() -> datetime:
    """Wait until the clock shows another second, and return it: servers and snapshots keep some times in seconds."""
    before = int(time.time())
    while int(time.time()) <= before:
        time.sleep(0.01)
    return datetime.now(UTC)


@contextlib.contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    """Put the clock of the guest forward for the block.

    MariaDB is down while the clock goes back. It starts no thread while the clock is before its last start of one
    (`tpool_generic.cc`), so it might never end its shutdown.
    """
    is_down = os.environ.get("LAB_FLAVOUR") == "mariadb"
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
    try:
        yield
    finally:
        if is_down:
            run(SERVER, "stop")
        time.clock_settime(time.CLOCK_REALTIME, time.time() - seconds)
        if is_down:
            run(SERVER, "start")


@dataclass
class Lab:
    """The guest: its flavour, its configuration, its store."""

    flavour: str
    folder: Path
    zygote: Zygote
    numbers: list[int] = field(default_factory=list)

    def zsnapdb(
        self, *words: str, config: Path = CONFIG, timeout: float = 600.0, environment: Mapping[str, str] | None = None
    ) -> Done:
        """Run a command line. Every document that it prints must be as its published schema says."""
        more = {**(environment or {}), "ZSNAPDB_CONFIG": str(config)}
        done = Done(*self.zygote.run(words, {**os.environ, **more}, timeout))
        check_printed(words, done.stdout)
        return done

    def changed(self, *replacements: tuple[str, str]) -> Path:
        """Write a copy of the configuration with replaced texts; the configuration must have each text."""
        text = CONFIG.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        tomllib.loads(text)
        self.numbers.append(0)
        path = self.folder / f"{len(self.numbers)}.toml"
        path.write_text(text)
        return path

    def elsewhere(self, *replacements: tuple[str, str]) -> Path:
        """Write a changed configuration, and create the new repository at its address.

        `--new` also works where this host stored backups in an earlier test.
        """
        config = self.changed(*replacements)
        assert self.zsnapdb("init", "--new", config=config).code == 0
        return config

    def store(self) -> tuple[Store, str]:
        return open_store(Instance.of(load(CONFIG), "main").repository)

    def objects(self) -> list[str]:
        store, prefix = self.store()
        return [item.key for item in store.list(prefix)]

    def sql(self, statement: str, user: str = "root", password: str = "") -> list[tuple[Any, ...]]:
        with ledger.connect(SOCKET, user, password, None) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def forget_old_binlogs(self) -> None:
        """Remove all binlogs but the newest one from the server.

        The binlogs of the image may be older than a day. Then `prune` soon removes their archived copies, and
        `binlog purge` stops at the first binlog that is not archived.
        """
        self.sql("FLUSH BINARY LOGS")
        self.sql(f"PURGE BINARY LOGS TO '{self.sql('SHOW BINARY LOGS')[-1][0]}'")

    @property
    def binlog_tool(self) -> str:
        return "/opt/mysql/bin/mysqlbinlog" if self.flavour == "mysql" else "/usr/bin/mariadb-binlog"

    @property
    def server(self) -> str:
        return "/opt/mysql/bin/mysqld" if self.flavour == "mysql" else "/usr/sbin/mariadbd"

    def truth(self, backup: dict[str, Any]) -> frozenset[ledger.Key]:
        """The journal rows up to a backup's position, from the source's own binlogs."""
        position, parent = backup["position"], Path("/var/lib/mysql")
        return ledger.journal_in_binlog(
            parent, parent / "binlog.index", self.binlog_tool, position["binlog_file"], position["binlog_offset"]
        )


@contextlib.contextmanager
def without_bodies(lab: Lab) -> Iterator[None]:
    """Remove every chunk and segment from the store for the block: who fetches one, fails."""
    store, _ = lab.store()
    bodies = {key: store.get(key) for key in lab.objects() if {"chunks", "segments"} & set(key.split("/"))}
    assert bodies
    for key in bodies:
        store.delete(key)
    try:
        yield
    finally:
        for key, body in bodies.items():
            store.put(key, body)


@contextlib.contextmanager
def started(lab: Lab, restored: Mapping[str, Any]) -> Iterator[pymysql.Connection]:
    """Start the server of a finished restore with its own option file, and end it after the block."""
    server = subprocess.Popen([lab.server, f"--defaults-file={restored['option_file']}"], stdin=subprocess.DEVNULL)
    try:
        with ledger.connect_when_up(str(Path(restored["option_file"]).parent / "server.sock"), server) as connection:
            yield connection
    finally:
        server.terminate()
        server.wait(300)


def connect(made: dict[str, Any]) -> pymysql.Connection:
    """Open a session with a clone; `made` is the output of the command that made the clone."""
    return pymysql.connect(
        host="127.0.0.1", port=made["clone"]["port"], user=made["user"], password=made["password"], autocommit=True
    )


def ask(connection: pymysql.Connection, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def remove(top: str) -> None:
    """End the server of a restore and remove its datasets."""
    mounts = zfs("get", "-H", "-o", "value", "mountpoint", top)
    ServerProcess(Path(mounts[0]) / ".zsnapdb").kill_all()
    remove_datasets(top)


def remove_datasets(top: str) -> None:
    """Remove the dataset of the files and its parent, with their snapshots and bookmarks."""
    for dataset in (f"{top}/data", top):
        for name in zfs("list", "-H", "-d", "1", "-t", "snapshot,bookmark", "-o", "name", dataset):
            zfs("destroy", name)
        zfs("destroy", dataset)


def remove_unused_sets(lab: Lab) -> None:
    """What was prepared for a clone stays for the next one, and goes when it is not used."""
    unused = lab.changed(("[repository.s3]\n", "[clones]\nkeep_unused = 0\n\n[repository.s3]\n"))
    assert lab.zsnapdb("reap", config=unused).code == 0
