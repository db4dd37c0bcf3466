"""A second server in the guest, on a small pool of its own, with what nobody may do to the guest's server and its pool.

Its files are a copy of those of the guest's server. One rule of the doctor is not planted on MySQL: what loads its keys
is a component beside the server program since 8.4, and no option that a server on a copy could lack.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.inside import ledger

from .in_guest import SOCKET, Lab, run, zfs

HOME, RUN = Path("/poor"), Path("/run/poor")
DISK = Path("/small/disk")
KEYS = HOME / "keys"
POOL_BYTES = 1 << 30
PARAMETERS = Path("/sys/module/zfs/parameters")
MIB = 1 << 20
LEAST_ARC = {"zfs_arc_min": 32 * MIB, "zfs_arc_max": 64 * MIB}
"""The smallest sizes that OpenZFS accepts, in the order in which it does (zfs(4))."""
MUCH_DATA = 14 << 30
"""More than 200 times the smallest ARC."""
CLONE_FILE = 0x40049409
"""FICLONE (ioctl_ficlonerange(2)): a file gets the blocks of another; what it takes is metadata."""
PUNCH_HOLE = 3
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE (fallocate(2))."""
BLOCK = 8 << 10
OF_SPACE = frozenset(("pool-space", "binlog-expiry"))
"""What is found because the pool is full: MariaDB removes no binlogs by default."""
FILLED = 0.965
"""The part of the available bytes that is written. Metadata takes 2 % more, and the server needs some."""
MARK = b"this is to be damaged "
OPTIONS = ("innodb_use_native_aio = ON", "innodb_flush_method = O_DIRECT_NO_FSYNC")
OPTIONS_OF_MARIADB = ("plugin_load_add = file_key_management", f"file_key_management_filename = {KEYS}")


@dataclass(frozen=True)
class PoorServer:
    """What the doctor says: while the pool is full, and while its free space is fragmented."""

    full: dict[str, Any]
    fragmented: dict[str, Any]


def right_fixes(flavour: str) -> dict[str, str]:
    """Return what mends each planted fault of the full pool and its server, by the rule that finds it."""
    of_mariadb = {
        "encrypted-tables": f'"plugin_load_add=file_key_management", "file_key_management_filename={KEYS}"',
        "binlog-expiry": "archive them and run `zsnapdb binlog purge main`",
    }
    return {
        "pool-errors": "run `zpool status -v` to list the damaged files",
        "pool-space": "add a device",
        "arc-floor": "options zfs zfs_arc_max=",
        "flush-method": "set it to O_DIRECT or fsync",
        "native-aio": "set innodb_use_native_aio = 0",
        **(of_mariadb if flavour == "mariadb" else {}),
    }


def consulted(lab: Lab) -> PoorServer:
    """Return what the doctor says of such a server. Afterwards nothing of it is left."""
    config = lab.changed((SOCKET, str(RUN / "mysqld.sock")), ("tank/mysql", "poor/mysql"))

    def diagnosis() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(lab.zsnapdb("doctor", "main", "--json", config=config).stdout)
        return document

    with _pool(), _server(lab), _least_arc():
        _write_much_data()
        _fill()
        _damage()
        full = diagnosis()
        _fragment()
        return PoorServer(full, diagnosis())


@contextlib.contextmanager
def _pool() -> Iterator[None]:
    """Make the pool on a file of the guest's pool, with a copy of the files of the guest's server, for the block."""
    zfs("create", "-o", f"mountpoint={DISK.parent}", "tank/small")
    DISK.touch()
    os.truncate(DISK, POOL_BYTES)
    options = ("-o", "ashift=12", "-O", f"mountpoint={HOME}", "-O", "atime=off", "-O", "compression=lz4")
    try:
        _succeed("zpool", "create", *options, "poor", str(DISK))
        # The servers write encrypted pages in sizes that O_DIRECT refuses from OpenZFS 2.3 on.
        zfs("set", "direct=disabled", "poor")
        zfs("create", "-o", "compression=off", "-o", "primarycache=none", "-o", "recordsize=8K", "poor/ballast")
        zfs("snapshot", "-r", "tank/mysql@poor")
        for name, record in (("mysql", "128K"), ("mysql/data", "16K")):
            _succeed("sh", "-ec", f"zfs send tank/{name}@poor | zfs receive -o recordsize={record} poor/{name}")
        yield
    finally:
        run("zpool", "destroy", "-f", "poor")
        zfs("destroy", "-r", "tank/mysql@poor")
        zfs("destroy", "tank/small")


@contextlib.contextmanager
def _server(lab: Lab) -> Iterator[None]:
    """Run a server on the copy, as nobody should, for the block."""
    of_mariadb = lab.flavour == "mariadb"
    text = Path("/etc/lab.cnf").read_text().replace("innodb_use_native_aio = OFF\n", "")
    for old, new in (
        ("/var/lib/mysql", "/poor/mysql"),
        ("/run/mysqld", str(RUN)),
        ("/var/log/lab", str(RUN)),
        ("port = 3306", "port = 3399"),
        ("server_id = 1", "server_id = 2"),
        ("buffer_pool_size = 256M", "buffer_pool_size = 64M"),
    ):
        assert old in text
        text = text.replace(old, new)
    RUN.mkdir()
    file = RUN / "my.cnf"
    file.write_text("\n".join((text, *OPTIONS, *(OPTIONS_OF_MARIADB if of_mariadb else ()), "")))
    index = HOME / "mysql/binlog.index"
    index.write_text(index.read_text().replace("/var/lib/mysql", "/poor/mysql"))
    KEYS.write_text(f"1;{'ab' * 16}\n")
    for path in (RUN, KEYS):
        shutil.chown(path, "mysql", "mysql")
    server = subprocess.Popen([lab.server, f"--defaults-file={file}"], stdin=subprocess.DEVNULL)
    try:
        with ledger.connect_when_up(str(RUN / "mysqld.sock"), server) as session, session.cursor() as cursor:
            if of_mariadb:
                cursor.execute("CREATE TABLE secret (id INT PRIMARY KEY) ENCRYPTED = YES")
        yield
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(RUN)


@contextlib.contextmanager
def _least_arc() -> Iterator[None]:
    """Let the ARC have no more than it must, for the block."""
    stats = dict(line.split()[::2] for line in Path("/proc/spl/kstat/zfs/arcstats").read_text().splitlines()[2:])
    try:
        for name, size in LEAST_ARC.items():
            (PARAMETERS / name).write_text(str(size))
        yield
    finally:
        (PARAMETERS / "zfs_arc_max").write_text(stats["c_max"])
        (PARAMETERS / "zfs_arc_min").write_text(stats["c_min"])


def _write_much_data() -> None:
    """Give the dataset with data a file, and clones of that file: so much data in a few blocks."""
    folder, size = HOME / "mysql/data", 128 * MIB
    zfs("set", "recordsize=1M", "poor/mysql/data")
    with (folder / "much").open("wb") as much:
        for _ in range(size // MIB):
            much.write(b"a" * MIB)
    zfs("set", "recordsize=16K", "poor/mysql/data")
    _succeed("zpool", "sync", "poor")
    with (folder / "much").open("rb") as much:
        for number in range(MUCH_DATA // size):
            with (folder / f"much{number}").open("wb") as more:
                fcntl.ioctl(more, CLONE_FILE, much.fileno())


def _fill() -> None:
    """Write into the pool until it is more than 80 % full: a file to be damaged, and one to get holes."""
    (HOME / "ballast/victim").write_bytes(MARK * 100)
    _succeed("zpool", "sync", "poor")
    (available,) = zfs("list", "-H", "-p", "-o", "available", "poor/ballast")
    with (HOME / "ballast/filling").open("wb") as filling:
        for _ in range(int(int(available) * FILLED) // MIB):
            filling.write(b"x" * MIB)
    _succeed("zpool", "sync", "poor")


def _damage() -> None:
    """Overwrite a part of the first file on the disk of the pool, and read the file."""
    with DISK.open("r+b") as disk, mmap.mmap(disk.fileno(), 0) as content:
        at = content.find(MARK)
        assert at > 0
        disk.seek(at)
        disk.write(bytes(len(MARK)))
    assert run("cat", str(HOME / "ballast/victim")).code != 0
    _succeed("zpool", "sync", "poor")


def _fragment() -> None:
    """Free every other block of the file that fills the pool."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    with (HOME / "ballast/filling").open("r+b") as filling:
        for at in range(0, os.fstat(filling.fileno()).st_size, 2 * BLOCK):
            assert fallocate(filling.fileno(), PUNCH_HOLE, at, BLOCK) == 0, os.strerror(ctypes.get_errno())
    _succeed("zpool", "sync", "poor")


def _succeed(*argv: str) -> None:
    done = run(*argv)
    assert done.code == 0, done.stderr
