"""Every line of a clone's contract: the danger first, on a naive clone of the same snapshots, then its absence on ours.

The source is stopped meanwhile: whatever opens one of its files is a clone, and clones are made without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.lab.inside import ledger

from .in_guest import SERVER, SOCKET, Lab, ask, run, zfs

SOURCE = Path("/var/lib/mysql")
NAIVE = Path("/srv/naive")
NAIVE_PORT = 3399
_IN_OPEN, _IN_ISDIR = 0x20, 0x40000000


class Opens:
    """Which files below the source's folders are opened while the block lasts (inotify(7))."""

    def __enter__(self) -> Opens:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watch = self._libc.inotify_init1(os.O_NONBLOCK)
        self._folders: dict[int, str] = {}
        for folder, _, _ in os.walk(SOURCE):
            number = self._libc.inotify_add_watch(self._watch, os.fsencode(folder), _IN_OPEN)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._folders[number] = folder
        return self

    def seen(self) -> set[str]:
        opened: set[str] = set()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._watch, 65536):
                while data:
                    number, mask, _, length = struct.unpack_from("iIII", data)
                    name = data[16 : 16 + length].rstrip(b"\0").decode()
                    data = data[16 + length :]
                    if not mask & _IN_ISDIR:
                        opened.add(f"{self._folders[number]}/{name}")
        return opened

    def __exit__(self, *_: object) -> None:
        os.close(self._watch)


class Upstream:
    """Listens where the source has its own source, and counts who calls."""

    def __enter__(self) -> Upstream:
        self.calls = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.calls += 1
                connection.close()

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@dataclass
class Observed:
    """What a server on a copy is, and what it did."""

    variables: dict[str, str]
    ticks: int
    calls: int
    opened: set[str]
    production_logs_in: bool
    listens: set[int] = field(default_factory=set)
    listens_beyond_loopback: bool = False


def variables_of(connection: pymysql.Connection) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in ask(connection, "SHOW GLOBAL VARIABLES")}


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses (as in /proc/net/tcp) and ports the process listens on."""
    own = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        # A file may be closed while we look.
        with contextlib.suppress(FileNotFoundError):
            own.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    sockets = set()
    # A kernel without IPv6 has no second table.
    for table in filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))):
        for line in table.read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                address, _, port = words[1].partition(":")
                sockets.add((address, int(port, 16)))
    return sockets


def observe(
    connection: pymysql.Connection, pid: int, upstream: Upstream, opens: Opens, *, at_most: float = 4.0
) -> Observed:
    """Watch a started server until an event has fired and a replica has called, or for `at_most` seconds.

    Four seconds are longer than an event's second and a replica's retry.
    """
    before = ask(connection, "SELECT COUNT(*) FROM ledger.beats")[0][0]
    deadline = time.monotonic() + at_most
    while time.monotonic() < deadline and not (
        upstream.calls and ask(connection, "SELECT COUNT(*) FROM ledger.beats")[0][0] > before
    ):
        time.sleep(0.2)
    variables = variables_of(connection)
    try:
        pymysql.connect(unix_socket=variables["socket"], user="app", password="lab-app").close()
        logs_in = True
    except pymysql.MySQLError:
        logs_in = False
    sockets = listening(pid)
    return Observed(
        variables,
        ask(connection, "SELECT COUNT(*) FROM ledger.beats")[0][0] - before,
        upstream.calls,
        opens.seen(),
        logs_in,
        {port for _, port in sockets},
        any(address not in ("0100007F", "00000000000000000000000001000000") for address, _ in sockets),
    )


@pytest.fixture(scope="module")
def dangerous(lab: Lab) -> Iterator[tuple[dict[str, Any], dict[str, str], Upstream]]:
    """A snapshot set of a source with everything in it that a copy must not do.

    The source is stopped, an upstream listens.
    """
    mysql = lab.flavour == "mysql"
    with Upstream() as upstream:
        lab.sql("CREATE TABLE ledger.beats (at BIGINT)")
        lab.sql(
            "CREATE EVENT ledger.beat ON SCHEDULE EVERY 1 SECOND DO INSERT INTO ledger.beats VALUES (UNIX_TIMESTAMP())"
        )
        if mysql:
            lab.sql(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={upstream.port}, SOURCE_USER='r', "
                "SOURCE_PASSWORD='production', SOURCE_CONNECT_RETRY=1"
            )
            lab.sql("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
            lab.sql("SET PERSIST rpl_semi_sync_source_enabled = ON")
            lab.sql("SET PERSIST rpl_semi_sync_source_timeout = 100")
            lab.sql("SET PERSIST max_connections = 77")
        else:
            lab.sql(
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={upstream.port}, MASTER_USER='r',"
                " MASTER_PASSWORD='production', MASTER_CONNECT_RETRY=1"
            )
        backup = lab.zsnapdb("backup", "--json").json["backup"]
        theirs = {str(name).lower(): str(value) for name, value in lab.sql("SHOW GLOBAL VARIABLES")}
        assert run(SERVER, "stop").code == 0
        upstream.calls = 0
        yield backup, theirs, upstream
    assert run(SERVER, "start").code == 0
    # A server that was a replica is one again when it starts.
    lab.sql("STOP REPLICA")
    lab.sql("DROP EVENT ledger.beat")
    lab.sql("DROP TABLE ledger.beats")
    if mysql:
        lab.sql("RESET REPLICA ALL")
        lab.sql("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
        lab.sql("RESET PERSIST")
        lab.sql("UNINSTALL PLUGIN rpl_semi_sync_source")
        lab.sql("SET GLOBAL max_connections = 60")
    else:
        lab.sql("RESET SLAVE ALL")
    assert lab.zsnapdb("backup").code == 0


def naive(lab: Lab, backup_id: str, upstream: Upstream) -> Observed:
    """Return what a clone made by hand does.

    Its datasets are cloned; paths, port and socket are changed; everything else is as in a production option file.
    """
    zfs("clone", "-o", f"mountpoint={NAIVE}", f"tank/mysql@zsnapdb-{backup_id}", "tank/naive")
    zfs("clone", "-o", f"mountpoint={NAIVE}/data", f"tank/mysql/data@zsnapdb-{backup_id}", "tank/naive/data")
    try:
        text = Path("/etc/lab.cnf").read_text().replace(str(SOURCE), str(NAIVE))
        lines = [
            line
            for line in text.splitlines()
            if line.partition("=")[0].strip()
            not in ("mysqlx", "loose_mysqlx", "socket", "pid_file", "log_error", "port", "bind_address")
        ]
        lines += [
            f"port={NAIVE_PORT}",
            f"socket={NAIVE}/s",
            f"pid_file={NAIVE}/p",
            f"log_error={NAIVE}/e",
            "event_scheduler=ON",
        ]
        lines += (
            [f"mysqlx_socket={NAIVE}/x"]
            if lab.flavour == "mysql"
            else ["extra_port=3398", "rpl_semi_sync_master_enabled=ON", "rpl_semi_sync_master_timeout=100"]
        )
        option_file = Path("/srv/naive.cnf")
        option_file.write_text("\n".join(lines) + "\n")
        binary = "/opt/mysql/bin/mysqld" if lab.flavour == "mysql" else "/usr/sbin/mariadbd"
        with Opens() as opens:
            process = subprocess.Popen(
                [binary, f"--defaults-file={option_file}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                with ledger.connect_when_up(f"{NAIVE}/s", process) as connection:
                    return observe(connection, process.pid, upstream, opens, at_most=120.0)
            finally:
                process.kill()
                process.wait()
    finally:
        for dataset in ("tank/naive/data", "tank/naive"):
            zfs("destroy", dataset)


def tls_keys(root: Path) -> dict[str, bytes]:
    """Return the keys of TLS in the data directory of a server with these files."""
    return {file.name: file.read_bytes() for file in (root / "data").glob("*.pem")}


def test_a_naive_clone_is_its_source_and_ours_is_not(
    lab: Lab, dangerous: tuple[dict[str, Any], dict[str, str], Upstream]
) -> None:
    backup, theirs, upstream = dangerous
    mysql = lab.flavour == "mysql"
    semi_sync = "rpl_semi_sync_source_enabled" if mysql else "rpl_semi_sync_master_enabled"
    bad = naive(lab, backup["backup_id"], upstream)
    upstream.calls = 0
    source_index = (SOURCE / "binlog.index").read_bytes()
    with Opens() as opens:
        made = lab.zsnapdb("clone", "create", "main", "--name", "ours", "--json").json
        with pymysql.connect(
            host="127.0.0.1", port=made["clone"]["port"], user=made["user"], password=made["password"], autocommit=True
        ) as here:
            good = observe(here, made["clone"]["pid"], upstream, opens)
            channels = ask(here, "SHOW REPLICA STATUS")
            keys = tls_keys(Path(made["clone"]["mount"]))
            # What rotates, purges and forgets logs does it to the clone's own.
            ask(here, "FLUSH BINARY LOGS")
            ask(here, "RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")
        touched = opens.seen()
    grants = (SOURCE / "data" / "mysqld-auto.cnf").exists()
    assert lab.zsnapdb("clone", "destroy", "ours").code == 0

    def differ(name: str) -> None:
        assert bad.variables[name] == theirs[name], name
        assert good.variables[name] != theirs[name], name

    source_keys = tls_keys(SOURCE)
    same = [name for name, text in keys.items() if text == source_keys.get(name)]
    assert same == [], "our clone has no key of its source"
    assert keys.keys() == source_keys.keys(), "it has made its own, as far as its source has some"
    assert ("server-key.pem" in source_keys) == mysql
    differ("server_id")
    if mysql:
        differ("server_uuid")
        assert grants, "the source has persisted variables"
        assert bad.variables["max_connections"] == "77", "a persisted variable overrides the option file"
        assert good.variables["max_connections"] != "77"
        assert "mysqlx_port" in bad.variables
        assert int(bad.variables["mysqlx_port"]) in bad.listens
        assert "mysqlx_port" not in good.variables
    else:
        assert 3398 in bad.listens, "an extra port"
    assert good.listens == {made["clone"]["port"]}
    assert bad.listens_beyond_loopback
    assert not good.listens_beyond_loopback
    assert bad.variables[semi_sync] == "ON"
    # A plugin that replicates is not loaded; what is built in is off.
    assert good.variables.get(semi_sync, "OFF") == "OFF"
    assert bad.ticks > 0, "the event fires in a naive clone"
    assert good.ticks == 0
    assert bad.calls > 0, "a naive clone of a replica connects to the source of its source"
    assert good.calls == 0
    assert not channels, "our clone has no replication channel"
    assert bad.production_logs_in
    assert not good.production_logs_in
    assert any(path.startswith(f"{SOURCE}/binlog.0") for path in bad.opened), "a naive clone opens its source's binlog"
    assert good.opened | touched == set(), "our clone opens no file of its source"
    assert (SOURCE / "binlog.index").read_bytes() == source_index
    assert (SOURCE / "data" / "auto.cnf").exists() == mysql


def test_a_clone_that_breaks_its_contract_is_stopped_and_gone(
    lab: Lab, dangerous: tuple[dict[str, Any], dict[str, str], Upstream]
) -> None:
    """A server that does not obey its option file: one whose wrapper starts it with an option of its own."""
    binary = "/opt/mysql/bin/mysqld" if lab.flavour == "mysql" else "/usr/sbin/mariadbd"
    # Where the server's account may run it: a server never runs as root.
    wrapper = Path("/opt/disobedient-server")
    wrapper.write_text(f'#!/bin/sh\nexec {binary} "$@" --event-scheduler=ON\n')
    wrapper.chmod(0o755)
    config = lab.changed((f'binary = "{binary}"', f'binary = "{wrapper}"'))
    done = lab.zsnapdb("clone", "create", "main", "--name", "disobedient", config=config)
    assert done.code == 11, done.stderr
    # Whichever is seen first: the setting, or what an event has already done.
    assert "event_scheduler is ON" in done.stderr or "the server started with GTIDs" in done.stderr
    assert "tank/zsnapdb/clones/disobedient" not in zfs("list", "-H", "-o", "name")
    assert not Path("/var/lib/zsnapdb/clones/disobedient").exists()
    assert not Path(SOCKET).exists(), "the source is down all along"
