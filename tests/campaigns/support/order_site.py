"""The host of the campaign `order`: its clock, server and datasets, and its contents according to ZFS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymysql

from tests.campaigns.support import restored
from tests.campaigns.support.field_host import command, servers
from tests.campaigns.support.order_truth import Marks, Policy
from tests.lab.inside import ledger
from tests.lab.inside.zygote import Zygote
from zsnapdb.base.domain_types import Flavour
from zsnapdb.zfs.command import run_when_free

SOCKET = "/run/mysqld/mysqld.sock"
SERVER = "/checkout/tests/lab/inside/server"
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
OPTIONS = Path("/etc/lab.cnf")
INCLUDED = Path("/etc/lab.d")
REPOSITORY = Path("/tmp/order/repository")
FOLDER = Path("/var/lib/mysql")
BEGIN = datetime(2030, 3, 12, 12, tzinfo=UTC).timestamp()
"""The true time at the start of each round, in seconds."""
LEASE = 3600.0
"""Lifetime of clones, prepared sets, replaced servers, and binlogs on the server, in seconds."""
MAX_AGE = 7200.0
"""Maximum age of a clone in the pool, in seconds."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SECOND_FILE = Path("/tmp/order/second.img")
_KEPT, _MADE = "tank/kept", "made"
_STATE = ("/var/lib/zsnapdb", "/var/cache/zsnapdb", "/run/zsnapdb")


@dataclass(frozen=True)
class Rules:
    """A round's configuration: the policies for backups and for local sets, and the number of backups on the host."""

    keep: Policy
    local: Policy
    most: int | None
    pool: bool


@dataclass(frozen=True)
class Done:
    """A finished command of zsnapdb."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON output; empty if there is none."""
        try:
            document = json.loads(self.out)
        except ValueError:
            return {}
        return dict(document)

    def __str__(self) -> str:
        return f"{' '.join(self.words)} ended with {self.code}: {self.err.strip()[-400:]}"


@dataclass(frozen=True)
class Seen:
    """Existing objects: snapshots (full name and createtxg) and datasets by GUID, files of repository and server."""

    snapshots: Mapping[int, tuple[str, int]]
    bookmarks: Mapping[int, tuple[str, int]]
    datasets: Mapping[int, str]
    manifests: frozenset[str]
    archived: frozenset[str]
    binlogs: tuple[str, ...]

    def on(self, *datasets: str) -> dict[int, tuple[str, int]]:
        """Return the snapshots of these datasets."""
        return {guid: (name, txg) for guid, (name, txg) in self.snapshots.items() if name.split("@")[0] in datasets}

    def bases_on(self, *datasets: str) -> set[int]:
        """Return the GUIDs of snapshots and bookmarks of these datasets, the possible bases of an increment."""
        marked = {guid for guid, (name, _) in self.bookmarks.items() if name.split("#")[0] in datasets}
        return marked | set(self.on(*datasets))


class Clock:
    """The true time, which passes while a round runs or the host is off, and the guest's clock."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start a round: the guest's clock is right."""
        self._started, self._off, self.error = time.monotonic(), 0.0, 0.0
        self._set()

    @property
    def now(self) -> float:
        return BEGIN + time.monotonic() - self._started + self._off

    def _set(self) -> None:
        time.clock_settime(time.CLOCK_REALTIME, self.now + self.error)

    def jump(self, error: float) -> None:
        """Make the guest's clock wrong by `error` seconds; no time passes."""
        self.error = error
        self._set()

    def pass_time(self, seconds: float) -> None:
        """Let true time pass while the host is off. The guest's clock continues, like one with a battery."""
        self._off += seconds
        self._set()


@dataclass
class Site:
    """The guest as successive hosts, with the same instance and the same repository."""

    flavour: Flavour
    zygote: Zygote = field(init=False)
    clock: Clock = field(init=False)
    parent: str = "tank/mysql"
    _dirty: bool = False
    _boots: int = 0

    def __post_init__(self) -> None:
        self.zygote = Zygote(Path(tempfile.mkdtemp()) / "zygote")
        self._config = CONFIG.read_text()
        REPOSITORY.parent.mkdir(parents=True, exist_ok=True)
        INCLUDED.mkdir(exist_ok=True)
        self._boot_id = Path("/tmp/order/boot_id")
        self._boot_id.write_text(BOOT_ID.read_text())
        command("mount", "--bind", str(self._boot_id), str(BOOT_ID))
        OPTIONS.write_text(f"{OPTIONS.read_text()}\n!includedir {INCLUDED}\n")
        if self.flavour is Flavour.MYSQL:
            # A start script for MySQL's innochecksum, like those of the lab's other MySQL programs.
            program = Path("/opt/mysql/bin/innochecksum")
            program.write_text(Path("/opt/mysql/bin/mysqldump").read_text().replace("mysqldump", "innochecksum"))
            program.chmod(0o755)
        command(SERVER, "stop")
        command("zfs", "snapshot", "-r", f"tank/mysql@{_MADE}")
        self._copy("tank/mysql", _KEPT, "mountpoint=none")
        self._copy("tank/mysql/data", f"{_KEPT}/data", "recordsize=16K")
        command("zfs", "destroy", "-r", f"tank/mysql@{_MADE}")
        command(SERVER, "start")
        self.clock = Clock()

    @staticmethod
    def _copy(source: str, target: str, *options: str) -> None:
        given = [word for option in options for word in ("-o", option)]
        with subprocess.Popen(["zfs", "send", "-c", f"{source}@{_MADE}"], stdout=subprocess.PIPE) as sender:
            done = subprocess.run(["zfs", "receive", "-u", *given, target], stdin=sender.stdout, check=False)
        if done.returncode != 0 or sender.returncode != 0:
            raise RuntimeError(f"{source} could not be copied to {target}")

    @property
    def data(self) -> str:
        return f"{self.parent}/data"

    @property
    def pool(self) -> str:
        return self.parent.split("/")[0]

    def begin(self, rules: Rules) -> None:
        """Start a round: an empty host and an empty repository."""
        self._clean()
        with self._down_if_mariadb():
            self.clock.begin()
        self.boot()
        shutil.rmtree(REPOSITORY, ignore_errors=True)
        REPOSITORY.mkdir()
        self.configure(rules)
        is_mysql = self.flavour is Flavour.MYSQL
        self.sql(
            "DROP DATABASE IF EXISTS past",
            "RESET BINARY LOGS AND GTIDS" if is_mysql else "RESET MASTER",
            "CREATE DATABASE past",
            "CREATE TABLE past.marks (number INT PRIMARY KEY)",
        )
        made = self.zsnapdb("init")
        if made.code != 0:
            raise RuntimeError(str(made))

    def set_clock(self, error: float) -> None:
        """Make the guest's clock wrong by `error` seconds; no time passes."""
        with self._down_if_mariadb() if error < self.clock.error else nullcontext():
            self.clock.jump(error)

    @contextmanager
    def _down_if_mariadb(self) -> Iterator[None]:
        """Stop MariaDB while the clock is set back.

        MariaDB starts no thread while the clock is before its last start of one (`tpool_generic.cc`), so a server that
        ran during such a jump never ends its shutdown.
        """
        if self.flavour is not Flavour.MARIADB:
            yield
            return
        self.stop()
        yield
        self.start()

    def configure(self, rules: Rules, *, drill_passes: bool = True) -> None:
        """Write the configuration of the round."""
        lines = [line for line in self._config.splitlines() if not line.startswith(("s3 =", "volumes =", "url ="))]
        sections = [
            "[instance.main.control]",
            f'stop = ["{SERVER}", "stop"]',
            f'start = ["{SERVER}", "start"]',
            f'server_id_file = "{INCLUDED}/zsnapdb.cnf"',
            "[instance.main.keep]",
            rules.keep.lines() + (f"local = {rules.most}" if rules.most else ""),
            "[instance.main.local]",
            rules.local.lines(),
            "[instance.main.chain]",
            'full_every = "0s"',
            "[instance.main.objectives]",
            'drill_age = "3650d"',
            "[instance.main.drill]",
            'sample = "1MiB"',
            "[[instance.main.drill.probe]]",
            'name = "marks"',
            'sql = "SELECT COUNT(*) FROM past.marks"',
            f"at_least = {0 if drill_passes else 1000000}",
            "[instance.main.binlog]",
            f'keep = "{LEASE:g}s"',
            *(["[instance.main.pool]", "size = 1", f'max_age = "{MAX_AGE:g}s"'] if rules.pool else []),
            "[clones]",
            f'ttl = "{LEASE:g}s"',
            f'keep_unused = "{LEASE:g}s"',
            "[restore]",
            f'keep_replaced = "{LEASE:g}s"',
            "[repository.s3]",
            f'url = "file://{REPOSITORY}"',
        ]
        CONFIG.write_text("\n".join(lines).replace("[repository.s3]", "\n".join(sections)) + "\n")

    def _clean(self) -> None:
        """Remove everything of a round, and bring back the original server if it was replaced."""
        for pid in servers():
            if self._dirty or not _is_production(pid):
                restored.end(pid)
        for folder in _STATE:
            subprocess.run(["umount", "-R", folder], capture_output=True, check=False)
        if Path("/var/lib/mysql").is_mount() and self._dirty:
            subprocess.run(["umount", "-R", str(FOLDER)], capture_output=True, check=False)
        self._import_as("tank")
        subprocess.run(["zpool", "destroy", "-f", "second"], capture_output=True, check=False)
        kept = () if self._dirty else (self.parent, self.data)
        self._remove_datasets(kept)
        for name in kept:
            self._remove_snapshots(name)
        for folder in _STATE:
            shutil.rmtree(folder, ignore_errors=True)
        SECOND_FILE.unlink(missing_ok=True)
        for file in INCLUDED.iterdir():
            file.unlink()
        if self._dirty:
            self.parent = "tank/mysql"
            self._copy(_KEPT, self.parent, f"mountpoint={FOLDER}")
            self._copy(f"{_KEPT}/data", self.data, "recordsize=16K")
            command("zfs", "destroy", "-r", f"{self.parent}@{_MADE}")
            for name in (self.parent, self.data):
                subprocess.run(["zfs", "mount", name], capture_output=True, check=False)
            command(SERVER, "start")
        elif self.parent != "tank/mysql":
            self.rename("tank/mysql")
        self._dirty = False

    def soil(self) -> None:
        """Record that the next round needs the original server again."""
        self._dirty = True

    def _remove_datasets(self, but: tuple[str, ...]) -> None:
        deadline = time.monotonic() + 60
        while True:
            names = command("zfs", "list", "-H", "-o", "name", "-t", "filesystem,volume", "-r", "tank").split()
            left = [name for name in names if name not in ("tank", *but) and not name.startswith(_KEPT)]
            if not left:
                return
            for line in reversed(Path("/proc/mounts").read_text().splitlines()):
                source, where, kind = line.split()[:3]
                if kind == "zfs" and source in left:
                    subprocess.run(["umount", where.replace("\\040", " ")], capture_output=True, check=False)
            for name in sorted(left, key=len, reverse=True):
                self._remove_snapshots(name)
                subprocess.run(["zfs", "destroy", "-r", "-f", name], capture_output=True, check=False)
            if time.monotonic() > deadline:
                raise RuntimeError(f"datasets of the round cannot be removed: {left}")

    @staticmethod
    def _remove_snapshots(dataset: str) -> None:
        words = ["zfs", "list", "-H", "-d", "1", "-t", "snapshot,bookmark", "-o", "name", dataset]
        names = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
        snapshots = [name for name in names if "@" in name and not name.endswith(f"@{_MADE}")]
        if snapshots:
            words = ["zfs", "holds", "-H", *snapshots]
            for line in subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines():
                snapshot, tag = line.split("\t")[:2]
                subprocess.run(["zfs", "release", tag, snapshot], capture_output=True, check=False)
        for name in (*snapshots, *(name for name in names if "#" in name)):
            subprocess.run(["zfs", "destroy", name], capture_output=True, check=False)

    def zsnapdb(self, *words: str) -> Done:
        """Run a command with --json and return its result."""
        given = words if "--json" in words else (*words, "--json")
        code, out, err = self.zygote.run(given, {**os.environ, "ZSNAPDB_CONFIG": str(CONFIG)}, 300.0)
        return Done(words, code, out, err)

    def sql(self, *statements: str, port: int | None = None, login: tuple[str, str] = ("root", "")) -> list[Any]:
        """Run statements on the server, or on a clone at that port, and return the rows of the last one."""
        if port is None:
            connection = ledger.connect(SOCKET, *login, None)
        else:
            user, password = login
            connection = pymysql.connect(host="127.0.0.1", port=port, user=user, password=password, autocommit=True)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def marks(self, port: int | None = None, login: tuple[str, str] = ("root", "")) -> Marks:
        """Return the marks in the server, or in a clone of it."""
        rows = self.sql("SELECT number FROM past.marks ORDER BY number", port=port, login=login)
        return tuple(int(row[0]) for row in rows)

    def start(self) -> None:
        command(SERVER, "start")

    def stop(self) -> None:
        command(SERVER, "stop")

    def boot(self) -> None:
        """Simulate a reboot: another boot id, and an empty /run."""
        self._boots += 1
        self._boot_id.write_text(f"{self._boots:08x}-0000-4000-8000-000000000000\n")

    def rename(self, parent: str) -> None:
        """Rename the datasets of the server while it runs."""
        command("zfs", "rename", "-u", self.parent, parent)
        self.parent = parent

    def _import_as(self, pool: str) -> None:
        pools = command("zpool", "list", "-H", "-o", "name").split()
        other = next((name for name in pools if name not in (pool, "second")), None)
        if other is not None and pool not in pools:
            run_when_free(["zpool", "export", other], patience=30)
            command("zpool", "import", "-d", "/dev/ubdb", other, pool)

    def import_as(self, pool: str) -> None:
        """Import the server's pool under another name; the server is stopped during that."""
        self.stop()
        self._import_as(pool)
        self.parent = f"{pool}/{self.parent.partition('/')[2]}"
        self.start()
        self.soil()

    def replace_host(self) -> str:
        """Replace the host by one with a new pool, from the repository. Return the restored backup."""
        self.soil()
        self.stop()
        for name in (self.data, self.parent):
            run_when_free(["zfs", "unmount", name], patience=30)
        command("zfs", "set", "canmount=noauto", self.parent)
        command("zfs", "set", "canmount=noauto", self.data)
        for folder in _STATE:
            subprocess.run(["umount", "-R", folder], capture_output=True, check=False)
            shutil.rmtree(folder, ignore_errors=True)
        with SECOND_FILE.open("wb") as file:
            file.truncate(4 << 30)
        root = ("-O", "mountpoint=none", "-O", "compression=lz4", "-O", "atime=off", "-O", "xattr=sa")
        command("zpool", "create", *root, "second", str(SECOND_FILE))
        # For another host all backups are foreign until it adopts them.
        adopted = self.zsnapdb("adopt", "main", "--yes")
        if adopted.code != 0:
            raise RuntimeError(str(adopted))
        done = self.zsnapdb("restore", "main", "--to", "latest", "--target", "second/mysql")
        if done.code != 0:
            raise RuntimeError(str(done))
        for pid in servers():
            restored.end(pid)
        self.parent = "second/mysql"
        for name in (self.data, self.parent):
            subprocess.run(["zfs", "unmount", name], capture_output=True, check=False)
        command("zfs", "set", f"mountpoint={FOLDER}", self.parent)
        command("zfs", "inherit", "mountpoint", self.data)
        for name in (self.parent, self.data):
            command("zfs", "set", "canmount=on", name)
            subprocess.run(["zfs", "mount", name], capture_output=True, check=False)
        (FOLDER / "data" / "auto.cnf").unlink(missing_ok=True)
        for index in FOLDER.glob("*.index"):
            # The server was restored to another folder, and its binlog indexes have paths.
            index.write_text("".join(f"{FOLDER}/{Path(line).name}\n" for line in index.read_text().splitlines()))
        self.start()
        return str(done.document.get("backup_id", ""))

    def look(self) -> Seen:
        """Return the present objects of this host's pool. Received snapshots have the GUIDs of the sent ones."""
        snapshots, bookmarks, datasets = {}, {}, {}
        words = ("zfs", "list", "-H", "-p", "-t", "filesystem,snapshot,bookmark", "-o", "name,guid,createtxg")
        for line in command(*words, "-r", self.pool).splitlines():
            name, guid, txg = line.split("\t")
            if name.startswith(_KEPT) or ("/zsnapdb/" in name and ("@" in name or "#" in name)):
                continue
            if "@" in name:
                snapshots[int(guid)] = (name, int(txg))
            elif "#" in name:
                bookmarks[int(guid)] = (name, int(txg))
            else:
                datasets[int(guid)] = name
        binlogs: tuple[str, ...] = ()
        with suppress(OSError):
            index = next(iter(FOLDER.glob("binlog.index")), None)
            binlogs = tuple(line.rpartition("/")[2] for line in index.read_text().split()) if index else ()
        top = REPOSITORY / "main"
        return Seen(
            snapshots,
            bookmarks,
            datasets,
            frozenset(path.stem for path in (top / "manifests").glob("*.json")),
            frozenset(str(path.relative_to(top)) for path in (top / "binlogs").glob("*/files/*.json")),
            binlogs,
        )


def _is_production(pid: int) -> bool:
    with suppress(OSError):
        return b"--defaults-file=/etc/lab.cnf" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
