"""The host of the campaign `field`: datasets, mounts, options, plugins, home and accounts of a round."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.campaigns.support import restored
from tests.campaigns.support.field_variables import Setting, Way
from zsnapdb.base.domain_types import Flavour

SERVER = "/checkout/tests/lab/inside/server"
SOCKET = "/run/mysqld/mysqld.sock"
OPTIONS, INCLUDED = Path("/etc/lab.cnf"), Path("/etc/lab.d")
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
HOME = Path("/root")
PARENT, DATA = "tank/mysql", "tank/mysql/data"
FOLDERS = {PARENT: "/var/lib/mysql", DATA: "/var/lib/mysql/data"}
_KEPT, _MADE = "tank/pristine", "pristine"
_FIRST = {PARENT: ("recordsize=128K", "compression=zstd"), DATA: ("recordsize=16K", "compression=lz4")}
_CONTROL = f"""[instance.main.control]
stop = ["{SERVER}", "stop"]
start = ["{SERVER}", "start"]
server_id_file = "{INCLUDED}/zsnapdb.cnf"

[repository.s3]"""
_HOSTILE = """[client]
host = 127.0.0.1
port = 1
socket = /nonexistent/mysql.sock
user = nobody
password = wrong
[mysql]
database = nowhere
init-command = "SET SESSION sql_mode = 'ANSI_QUOTES'"
skip-column-names
[mysqldump]
no-data
where = 1=0
[mysqlbinlog]
stop-position = 4
[mysqld]
port = 1
[mariadb-binlog]
stop-position = 4
"""


class Mounting(StrEnum):
    """How the server's datasets are mounted."""

    INHERITED = "inherited"
    SET = "mountpoint set"
    LEGACY = "legacy"
    NOAUTO = "canmount=noauto"


PROPERTIES: tuple[tuple[str, str], ...] = (
    ("quota", "4G"),
    ("refquota", "3G"),
    ("reservation", "100M"),
    ("refreservation", "50M"),
    ("copies", "2"),
    ("secondarycache", "none"),
    ("primarycache", "metadata"),
    ("snapdir", "visible"),
    ("direct", "disabled"),
    ("logbias", "throughput"),
    ("sync", "standard"),
    ("atime", "on"),
    ("relatime", "on"),
    ("redundant_metadata", "most"),
    ("checksum", "sha256"),
    ("acltype", "posix"),
    ("exec", "off"),
    ("setuid", "off"),
    ("devices", "off"),
    ("dnodesize", "auto"),
    ("special_small_blocks", "4K"),
    ("snapshot_limit", "500"),
    ("filesystem_limit", "500"),
    ("prefetch", "none"),
    ("autobackup:offsite", "true"),
    ("com.sun:auto-snapshot", "false"),
    ("com.sun:auto-snapshot:hourly", "true"),
    ("org.znapzend:src_plan", "1d=>1h"),
    ("site.example:owner", "team a, team b"),
    ("syncoid:sync", "yes"),
)
"""Properties that a site sets on its server's datasets."""
ROOT_PROPERTIES: tuple[tuple[str, str], ...] = (
    ("readonly", "on"),
    ("exec", "off"),
    ("setuid", "off"),
    ("snapdir", "visible"),
    ("atime", "on"),
    ("primarycache", "metadata"),
    ("copies", "2"),
    ("sync", "disabled"),
    ("mountpoint", "/srv/pool"),
    ("com.sun:auto-snapshot", "true"),
)
"""Properties of the pool's root, which the server's datasets override where it matters."""


@dataclass(frozen=True)
class Plugin:
    """A plugin or component: its library, how it is loaded, and the engine, login or function that it provides."""

    library: str
    how: str
    engine: str = ""
    login: str = ""
    function: str = ""

    def __str__(self) -> str:
        return f"{self.library} ({self.how})"


_MARIADB = (
    Plugin("ha_archive", "", engine="ARCHIVE"),
    Plugin("ha_blackhole", "", engine="BLACKHOLE"),
    Plugin("ha_federatedx", ""),
    Plugin("ha_sphinx", ""),
    Plugin("auth_ed25519", "", login="ed25519"),
    Plugin("auth_parsec", "", login="parsec"),
    Plugin("disks", ""),
    Plugin("locales", ""),
    Plugin("metadata_lock_info", ""),
    Plugin("query_response_time", ""),
    Plugin("sql_errlog", ""),
    Plugin("server_audit", ""),
    Plugin("simple_password_check", ""),
    Plugin("type_mysql_json", ""),
)
_MYSQL = (
    Plugin("auth_socket.so", "plugin auth_socket", login="auth_socket"),
    Plugin("mysql_no_login.so", "plugin mysql_no_login", login="mysql_no_login"),
    Plugin("mysql_clone.so", "plugin clone"),
    Plugin("ddl_rewriter.so", "plugin ddl_rewriter"),
    Plugin("semisync_source.so", "plugin rpl_semi_sync_source"),
    Plugin("mypluglib.so", "plugin simple_parser"),
    Plugin("locking_service.so", "function service_get_read_locks", function="service_get_read_locks('a', 'b', 0)"),
    Plugin(
        "component_query_attributes", "component", function="mysql_query_attribute_string('a')"
    ),
    Plugin("component_validate_password", "component"),
    Plugin("component_log_sink_json", "component"),
    Plugin("component_reference_cache", "component"),
    Plugin("component_connection_control", "component"),
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """The drawn properties of a round's host."""

    mounting: Mounting
    properties: tuple[tuple[str, str, str], ...]
    root_properties: tuple[tuple[str, str], ...]
    allowed: tuple[tuple[str, str], ...]
    plugins: tuple[Plugin, ...]
    has_other_account: bool
    has_hostile_home: bool
    has_temporary_outside: bool
    is_received: bool

    def __str__(self) -> str:
        root = [f"{name}={value}" for name, value in self.root_properties]
        own = [f"{dataset.rpartition('/')[2]}:{name}={value}" for dataset, name, value in self.properties]
        flags = {
            "another uid of mysql": self.has_other_account,
            "hostile home": self.has_hostile_home,
            "ibtmp1 outside of the data directory": self.has_temporary_outside,
            "received properties": self.is_received,
        }
        parts = [self.mounting.value, *(flag for flag, is_so in flags.items() if is_so)]
        parts += [f"allow {user} {right}" for user, right in self.allowed]
        return f"{', '.join(parts)}; pool: {' '.join(root) or '-'}; datasets: {' '.join(own) or '-'}; plugins: " + (
            ", ".join(map(str, self.plugins)) or "-"
        )


def draw(flavour: Flavour, chance: random.Random, libraries: frozenset[str], properties: frozenset[str]) -> Site:
    """Draw the host of a round. `libraries` are the server's plugins, `properties` those of this OpenZFS."""
    named = [one for one in PROPERTIES if ":" in one[0] or one[0] in properties]
    own = [(chance.choice((PARENT, DATA)), *one) for one in chance.sample(named, chance.randint(2, 9))]
    known = [
        one
        for one in (_MARIADB if flavour is Flavour.MARIADB else _MYSQL)
        if one.library.removesuffix(".so") in libraries
    ]
    plugins = []
    for plugin in chance.sample(known, min(len(known), chance.choice((0, 1, 3)))):
        hows = ["plugin_load_add", "INSTALL SONAME"] if flavour is Flavour.MARIADB else [plugin.how]
        hows += ["plugin_load_add"] if plugin.how.startswith("plugin ") else []
        plugins.append(Plugin(plugin.library, chance.choice(hows), plugin.engine, plugin.login, plugin.function))
    return Site(
        mounting=chance.choice(list(Mounting)),
        properties=tuple(own),
        root_properties=tuple(chance.sample(ROOT_PROPERTIES, chance.choice((0, 0, 1, 2, 4)))),
        allowed=tuple(chance.sample((("daemon", "send,hold"), ("nobody", "snapshot"), ("backup", "mount,create")), 1))
        if chance.random() < 0.6
        else (),
        plugins=tuple(plugins),
        has_other_account=chance.random() < 0.2,
        has_hostile_home=chance.random() < 0.6,
        has_temporary_outside=chance.random() < 0.15,
        is_received=chance.random() < 0.2,
    )


def command(*words: str) -> str:
    """Run a command and return its output. RuntimeError with the command and its output if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def servers() -> list[int]:
    """Return the process ids of all database servers in this guest."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (folder / "comm").read_text().strip()
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if name in ("mariadbd", "mysqld") or any(word.endswith(b"/sbin/mysqld") for word in words[:4]):
                found.append(int(folder.name))
    return found


class Host:
    """The guest as a host, which is prepared for each round from a copy of the original server."""

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour
        self.is_mysql = flavour is Flavour.MYSQL
        self._options = Path(f"/checkout/tests/lab/inside/{flavour}.cnf").read_text()
        self._config = CONFIG.read_text()
        self._accounts = {path: path.read_text() for path in (Path("/etc/passwd"), Path("/etc/group"))}
        self._fstab = Path("/etc/fstab").read_text() if Path("/etc/fstab").exists() else ""
        command("mount", "--make-rshared", "/")
        if self.is_mysql:
            # A start script for MySQL's innochecksum, like those of the lab's other MySQL programs.
            program = Path("/opt/mysql/bin/innochecksum")
            program.write_text(Path("/opt/mysql/bin/mysqldump").read_text().replace("mysqldump", "innochecksum"))
            program.chmod(0o755)
        if subprocess.run(["zfs", "list", _KEPT], capture_output=True, check=False).returncode != 0:
            self._keep()

    def _keep(self) -> None:
        """Keep a copy of the lab's original server."""
        self.stop()
        command("zfs", "snapshot", "-r", f"{PARENT}@{_MADE}")
        for name, options in ((PARENT, ["-o", "mountpoint=none"]), (DATA, [])):
            self._copy(name, name.replace(PARENT, _KEPT), options)

    @staticmethod
    def _copy(source: str, target: str, options: Sequence[str], *send: str) -> None:
        with subprocess.Popen(["zfs", "send", "-c", *send, f"{source}@{_MADE}"], stdout=subprocess.PIPE) as sender:
            done = subprocess.run(["zfs", "receive", "-u", *options, target], stdin=sender.stdout, check=False)
        if done.returncode != 0 or sender.returncode != 0:
            raise RuntimeError(f"{source} could not be copied to {target}")

    def clean(self) -> None:
        """Remove everything of a round: servers, mounts, datasets, records, accounts, files in the home folder."""
        for pid in servers():
            restored.end(pid)
        for path, text in self._accounts.items():
            path.write_text(text)
        Path("/etc/fstab").write_text(self._fstab)
        for name in (".my.cnf", ".mylogin.cnf", ".mysqlrc"):
            (HOME / name).unlink(missing_ok=True)
        for folder in ("/var/lib/zsnapdb", "/var/cache/zsnapdb"):
            subprocess.run(["umount", "-R", folder], capture_output=True, check=False)
        self._remove_datasets()
        for folder in ("/var/lib/zsnapdb", "/var/cache/zsnapdb", "/run/zsnapdb", str(INCLUDED)):
            shutil.rmtree(folder, ignore_errors=True)
        for name, _ in ROOT_PROPERTIES:
            first = {"mountpoint": "none", "atime": "off"}.get(name)
            command("zfs", *(("set", f"{name}={first}") if first else ("inherit", name)), "tank")

    def _remove_datasets(self) -> None:
        """Destroy all datasets except the pool's root and the kept copy."""
        deadline = time.monotonic() + 60
        while True:
            names = [
                name
                for name in command("zfs", "list", "-H", "-o", "name", "-t", "filesystem,volume").split()
                if name != "tank" and not name.startswith(_KEPT)
            ]
            if not names:
                return
            for line in reversed(Path("/proc/mounts").read_text().splitlines()):
                source, where, kind = line.split()[:3]
                if kind == "zfs" and source.startswith("tank/"):
                    subprocess.run(["umount", where.replace("\\040", " ")], capture_output=True, check=False)
            for name in sorted(names, key=len):
                self._release(name)
                subprocess.run(["zfs", "destroy", "-R", "-f", name], capture_output=True, check=False)
            if time.monotonic() > deadline:
                raise RuntimeError(f"datasets of the round cannot be removed: {names}")

    @staticmethod
    def _release(name: str) -> None:
        listed = subprocess.run(
            ["zfs", "list", "-H", "-r", "-t", "snapshot", "-o", "name", name],
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.stdout.strip():
            holds = subprocess.run(
                ["zfs", "holds", "-H", *listed.stdout.split()], capture_output=True, text=True, check=False
            )
            for line in holds.stdout.splitlines():
                snapshot, tag = line.split("\t")[:2]
                subprocess.run(["zfs", "release", tag, snapshot], capture_output=True, check=False)

    def prepare(self, site: Site, number: int) -> None:
        """Create datasets, mounts, properties and configuration of a round. The server does not run."""
        for dataset, options in _FIRST.items():
            given = [word for option in options for word in ("-o", option)]
            where = ["-o", f"mountpoint={FOLDERS[PARENT]}"] if dataset == PARENT else []
            kept = dataset.replace(PARENT, _KEPT)
            if site.is_received:
                for option in options:
                    command("zfs", "set", option, kept)
            self._copy(
                kept, dataset, where if site.is_received else given + where, *(["-p"] if site.is_received else [])
            )
            command("zfs", "destroy", f"{dataset}@{_MADE}")
        if site.is_received:
            command("zfs", "inherit", "mountpoint", DATA)
        for name, value in site.root_properties:
            command("zfs", "set", f"{name}={value}", "tank")
        for name, value in {"readonly": "off", "exec": "on", "setuid": "on"}.items():
            if any(name == one for one, _ in site.root_properties):
                command("zfs", "set", f"{name}={value}", PARENT)
        for dataset, name, value in site.properties:
            command("zfs", "set", f"{name}={value}", dataset)
        for user, rights in site.allowed:
            command("zfs", "allow", "-u", user, rights, PARENT)
        self._mount(site.mounting)
        INCLUDED.mkdir(exist_ok=True)
        (INCLUDED / "zsnapdb.cnf").write_text("")
        text = self._config.replace("[repository.s3]", _CONTROL, 1)
        CONFIG.write_text(re.sub(r"s3://backups/lab[\w-]*", f"s3://backups/lab-field-{number}", text))

    @staticmethod
    def _mount(mounting: Mounting) -> None:
        for dataset in (DATA, PARENT):
            # A property change may have mounted the child before the parent.
            subprocess.run(["zfs", "unmount", dataset], capture_output=True, check=False)
        for dataset, folder in FOLDERS.items():
            match mounting:
                case Mounting.LEGACY:
                    command("zfs", "set", "mountpoint=legacy", dataset)
                    command("mount", "-t", "zfs", dataset, folder)
                    with Path("/etc/fstab").open("a") as table:
                        table.write(f"{dataset} {folder} zfs defaults 0 0\n")
                case Mounting.SET:
                    command("zfs", "set", f"mountpoint={folder}", dataset)
                case Mounting.NOAUTO:
                    command("zfs", "set", "canmount=noauto", dataset)
            if not _is_mounted(dataset):
                command("zfs", "mount", dataset)

    def options(self, settings: Sequence[Setting], site: Site) -> str:
        """Return the option file of a round."""
        lines = [one.line for one in settings if one.way is Way.FILE]
        lines += [f"plugin_load_add = {one.library}" for one in site.plugins if one.how == "plugin_load_add"]
        if site.has_temporary_outside:
            lines.append("innodb_temp_data_file_path = ../ibtmp1:12M:autoextend")
        return "\n".join([self._options, *lines, f"!includedir {INCLUDED}", ""])

    def start(self, settings: Sequence[Setting], site: Site) -> tuple[Setting, ...]:
        """Start the server. Return the settings of the option file that prevent a start; they are left out."""
        OPTIONS.write_text(self.options(settings, site))
        if self._starts():
            return ()
        inside = [one for one in settings if one.way is Way.FILE]
        bad: list[Setting] = []
        pieces = [inside[: len(inside) // 2], inside[len(inside) // 2 :]]
        good: list[Setting] = []
        while pieces:
            piece = pieces.pop()
            OPTIONS.write_text(self.options([*good, *piece], site))
            if not piece or self._starts():
                good += piece
                self.stop()
            elif len(piece) == 1:
                bad += piece
            else:
                pieces += [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
        OPTIONS.write_text(self.options(good, site))
        command(SERVER, "start")
        return tuple(bad)

    @staticmethod
    def _starts() -> bool:
        try:
            return subprocess.run([SERVER, "start"], capture_output=True, check=False, timeout=60).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def stop(self) -> None:
        """Stop the server and wait for its end."""
        for pid in servers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while servers() and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in servers():
            restored.end(pid)

    def change_account(self) -> None:
        """Give the server's account another uid and gid, as on another host without a running server."""
        self.stop()
        for path, text in self._accounts.items():
            path.write_text(
                re.sub(r"(?m)^(mysql:[^:]*):\d+(:\d+)?", r"\1:4321" + (":4321" if "passwd" in path.name else ""), text)
            )
        lines = CONFIG.read_text().splitlines()
        ours = ("socket = ", "user = ", "password_file = ", "volumes = ")
        CONFIG.write_text("\n".join(line for line in lines if not line.startswith(ours)) + "\n")

    def write_home(self) -> None:
        """Write option files and a login path that point clients to another server."""
        for name in (".my.cnf", ".mysqlrc"):
            (HOME / name).write_text(_HOSTILE)
        write_login_path(
            HOME / ".mylogin.cnf", {"host": "localhost", "user": "dba", "password": "dba", "socket": SOCKET}
        )


def _is_mounted(dataset: str) -> bool:
    return f"\n{dataset} " in f"\n{Path('/proc/mounts').read_text()}"


def write_login_path(file: Path, options: Mapping[str, str]) -> None:
    """Write the login path [client] as mysql_config_editor does, which would ask for passwords at a terminal."""
    key = os.urandom(20)
    real = bytearray(16)
    for place, byte in enumerate(key):
        real[place % 16] ^= byte
    content = bytes(4) + key
    for line in ("[client]", *(f'{name} = "{value}"' for name, value in options.items())):
        text = f"{line}\n".encode()
        pad = 16 - len(text) % 16
        encryptor = Cipher(algorithms.AES(bytes(real)), modes.ECB()).encryptor()
        sealed = encryptor.update(text + bytes([pad]) * pad)
        content += struct.pack("<I", len(sealed)) + sealed
    file.touch(0o600)
    file.write_bytes(content)


_COUNTS = ("snapshot_count", "filesystem_count")
"""Counts that ZFS shows as local properties if a limit is set."""


def dataset_state() -> dict[str, str]:
    """Return local and received properties of the server's datasets, and the delegated permissions."""
    state = {}
    for dataset in (PARENT, DATA):
        for line in command(
            "zfs", "get", "-H", "-s", "local,received", "-o", "property,value", "all", dataset
        ).splitlines():
            name, value = line.split("\t")
            if not name.startswith("zsnapdb:") and name not in _COUNTS:
                state[f"{dataset} {name}"] = value
        state[f"{dataset} allow"] = command("zfs", "allow", dataset)
        state[f"{dataset} mounted at"] = " ".join(
            line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[0] == dataset
        )
    return state


def known_properties() -> frozenset[str]:
    """Return the names of the properties of this OpenZFS."""
    return frozenset(command("zfs", "get", "-H", "-o", "property", "all", PARENT).split())
