"""Finds the servers on this host from kernel facts: programs, sockets and working directories.

When a server starts, it makes its data directory its working directory. A process with another root directory (a
container or a zsnapdb clone) is skipped. A process is also skipped if its data directory is not this host's directory
at the same path. Systemd services are included: they may have their own mount namespace, but they have the host's root
(systemd.exec(5), "ProtectSystem=").
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import select
import signal
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.process.written_paths import DIRECTORIES
from zsnapdb.mysql.session import Address, Session
from zsnapdb.mysql.variables import global_variables

_PROGRAMS = ("mysqld", "mariadbd", "mysqld-debug")
_NAMED_PROGRAM = re.compile(r"(mysqld|mariadbd)([.-][A-Za-z0-9._-]+)?")
"""Program names that users may configure, such as mysqld-9.7."""
_LISTENS = 0x10000
"""Flag of a socket that accepts connections (proc(5), /proc/net/unix; __SO_ACCEPTCON)."""
_LOADER = re.compile(r"ld-linux[a-z0-9_.-]*|ld-[0-9.]+\.so|ld\.so[0-9.]*")
"""The dynamic loader, which can start the program in its argument (ld.so(8)). Then /proc/PID/exe is the loader."""
_SOCKET = re.compile(r"socket:\[([0-9]+)\]")
_X_PROTOCOL = "mysqlx"
SERVICE_NAME = r"[A-Za-z0-9:_.@\\-]{1,200}\.service"
"""The name of a service (systemd.unit(5), "DESCRIPTION")."""
_SERVICE = re.compile(SERVICE_NAME)
FOLDER_VARIABLES = tuple(name for name in DIRECTORIES if name != "datadir")
_ROW_METADATA = "binlog_row_metadata"
PATH_VARIABLES = (*FOLDER_VARIABLES, "log_bin_basename", "log_bin_index", "relay_log_index")


@dataclass(frozen=True)
class DiscoveredProcess:
    """A process of a server program: its account, program, listening sockets and data directory.

    If `is_by_loader` is set, the dynamic loader started the program, and the program may not start without the loader.
    """

    pid: int
    account: str
    program: str
    sockets: tuple[str, ...]
    datadir: str
    is_by_loader: bool = False


@dataclass(frozen=True)
class RootObservation:
    """Facts about a server that are known after root has logged in to it.

    `page_size` is InnoDB's page size. `has_socket_login` says whether accounts can be configured to log in through the
    socket.
    """

    page_size: int
    is_read_only: bool
    has_socket_login: bool
    paths: Mapping[str, str] = field(default_factory=dict)
    """Values of the variables that name folders and files, by variable name."""
    row_metadata: str = ""
    """Value of binlog_row_metadata; "" if the server lacks this variable."""


def server_processes(proc: Path = Path("/proc")) -> list[DiscoveredProcess]:
    """Return the servers whose files are at the same paths on this host.

    Processes that end during the search are skipped.

    Only root sees the sockets of processes that other accounts run.
    """
    listening = _listening(proc)
    namespace = _link(proc / "self/ns/mnt")
    servers = []
    for entry in sorted((e for e in proc.iterdir() if e.name.isdecimal()), key=lambda e: int(e.name)):
        program = _program(entry)
        if os.path.basename(program) in _PROGRAMS and _sees_this_host(entry, namespace):
            with contextlib.suppress(OSError, KeyError):
                sockets = tuple(sorted(set(_sockets(entry, listening))))
                account = pwd.getpwuid(entry.stat().st_uid).pw_name
                by_loader = program != _executable(entry)
                datadir = os.readlink(entry / "cwd")
                servers.append(DiscoveredProcess(int(entry.name), account, program, sockets, datadir, by_loader))
    return servers


def process_of(session: Session) -> int | None:
    """Return the server process of a session on this host; None if the process is unknown.

    If the process at the other end of the session's socket is not a server, the server's data directory identifies the
    process.
    """
    peer = session.peer
    if peer is not None and is_server_program(Path(f"/proc/{peer}")):
        return peer
    here = os.path.realpath(str(session.value("SELECT @@datadir")))
    return next((process.pid for process in server_processes() if process.datadir == here), None)


def is_server_program(process: Path) -> bool:
    """Return whether the process, a folder of proc(5), runs a server program."""
    return _NAMED_PROGRAM.fullmatch(os.path.basename(_program(process))) is not None


def _sees_this_host(entry: Path, namespace: str) -> bool:
    """Return whether a process has this host's root, and its working directory has the same path on this host."""
    if _link(entry / "ns/mnt") == namespace:
        return True
    datadir = _link(entry / "cwd")
    try:
        pairs = ((entry / "root", Path("/")), (entry / "cwd", Path(datadir)))
        return bool(datadir) and all(os.path.samefile(theirs, ours) for theirs, ours in pairs)
    except OSError:
        return False


def _program(entry: Path) -> str:
    """Return the program of a process.

    If the dynamic loader started the program, return the server program among the mapped files.
    """
    program = _executable(entry)
    if _LOADER.fullmatch(os.path.basename(program)):
        with contextlib.suppress(OSError):
            for line in os.fsdecode((entry / "maps").read_bytes()).split("\n"):
                words = line.split(maxsplit=5)
                if len(words) == 6 and os.path.basename(words[5]) in _PROGRAMS:
                    return words[5]
    return program


def _executable(entry: Path) -> str:
    return _link(entry / "exe").removesuffix(" (deleted)")


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _listening(proc: Path) -> dict[str, str]:
    """Return the paths of listening sockets by inode, without abstract sockets."""
    paths = {}
    for line in os.fsdecode((proc / "net/unix").read_bytes()).split("\n")[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[7].startswith("/") and int(words[3], 16) & _LISTENS:
            paths[words[6]] = words[7]
    return paths


def _sockets(entry: Path, listening: dict[str, str]) -> Iterator[str]:
    for descriptor in (entry / "fd").iterdir():
        match = _SOCKET.fullmatch(_link(descriptor))
        path = listening.get(match.group(1)) if match is not None else None
        if path is not None and _X_PROTOCOL not in os.path.basename(path):
            yield path


def service_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the systemd service of the process, from the name of its control group; "" if no service runs it."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().split("\n")
    except OSError:
        return ""
    names = [line.rpartition(":")[2].rpartition("/")[2] for line in lines]
    return next((name for name in names if _SERVICE.fullmatch(name)), "")


def seen_by_root(socket: Path) -> RootObservation | None:
    """Log in as root and return the facts about the server.

    The result is None if root cannot log in through the socket without a password.
    """
    plugins = "SELECT COUNT(*) FROM information_schema.PLUGINS WHERE PLUGIN_NAME = %s AND PLUGIN_STATUS = 'ACTIVE'"
    try:
        with Session.open(Address("root", socket), SecretStr("")) as session:
            # refman 8.4, "Socket Peer-Credential Pluggable Authentication".
            ((count,),) = session.query(plugins, ("auth_socket",))
            read_only = str(session.value("SELECT @@GLOBAL.read_only")).upper()
            page_size = int(session.value("SELECT @@GLOBAL.innodb_page_size"))
            said = global_variables(session, (*PATH_VARIABLES, _ROW_METADATA))
            metadata = said.get(_ROW_METADATA, "")
            paths = {name: value for name, value in said.items() if name != _ROW_METADATA}
            return RootObservation(page_size, read_only not in ("0", "OFF"), bool(count), paths, metadata)
    except ServerError:
        return None


_OPTION = b"--defaults-file="
_PATIENCE_MS = 20_000


@dataclass(frozen=True)
class RunningServer:
    """A process that serves files below a mount folder of zsnapdb.

    All mounts of one restore or clone are in the subfolder `place`. `started` is the start time in clock ticks since
    boot.
    """

    pid: int
    started: int
    place: Path
    datadir: Path


def servers_below(roots: Collection[Path], private_folder: str) -> list[RunningServer]:
    """Return the servers whose option file and data directory are below one subfolder of a folder in `roots`.

    `private_folder` is the name of the folder with the option file. Processes that end during the scan are skipped.
    """
    servers = []
    for name in os.listdir("/proc"):
        server = _server(int(name), roots, private_folder) if name.isdecimal() else None
        if server is not None:
            servers.append(server)
    return sorted(servers, key=lambda server: server.pid)


def _server(pid: int, roots: Collection[Path], private_folder: str) -> RunningServer | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        files = [Path(os.fsdecode(word[len(_OPTION) :])) for word in words if word.startswith(_OPTION)]
        if not files:
            return None
        datadir = Path(os.readlink(f"/proc/{pid}/cwd"))
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    for file in files:
        for root in roots:
            if file.parent.name != private_folder or ".." in file.parts or not file.is_relative_to(root):
                continue
            place = root / file.relative_to(root).parts[0]
            if datadir.is_relative_to(place):
                return RunningServer(pid, started, place, datadir)
    return None


def end(server: RunningServer, private_folder: str) -> bool:
    """Kill the server and wait until it has ended. Only use this for a copy that is then rolled back or removed.

    Return False, and kill nothing, if this process no longer runs. Also return False if the process has not ended after
    20 s. The function first opens a process handle (pidfd_open(2)), so that a later process with the same id cannot get
    the signal.
    """
    try:
        handle = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return False
    try:
        if _server(server.pid, [server.place.parent], private_folder) != server:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(_PATIENCE_MS))
    finally:
        os.close(handle)


_LONGEST = 2048
_HEADER = 4
_PROTOCOL, _ERROR = 10, 0xFF
_VERSION = re.compile(rb"[\x20-\x7e]{1,80}")
"""A version may contain spaces, for example in Debian: `11.8.6-MariaDB-0+deb13u1 from Debian-log`."""


@dataclass(frozen=True)
class ServerGreeting:
    """The version in the greeting of a server, or the error number `refusal` that the server sent instead."""

    version: str = ""
    refusal: int = 0


def read_greeting(packet: bytes) -> ServerGreeting | None:
    """Return the greeting at the start of the bytes; None if the bytes are not a complete server greeting.

    An error packet is treated as a greeting, because only a server sends such packets, for example 1130 (this host may
    not log in) or 1040 (too many connections).
    """
    if len(packet) <= _HEADER or packet[3] != 0:
        return None
    length = int.from_bytes(packet[:3], "little")
    body = packet[_HEADER : _HEADER + length]
    if length > _LONGEST or len(body) < length or length < 3:
        return None
    if body[0] == _ERROR:
        return ServerGreeting(refusal=int.from_bytes(body[1:3], "little"))
    version, separator, _ = body[1:].partition(b"\0")
    if body[0] != _PROTOCOL or not separator or not _VERSION.fullmatch(version):
        return None
    return ServerGreeting(version=version.decode("ascii"))


def greeting_of(address: str, port: int, patience: float) -> ServerGreeting | None:
    """Return the greeting of the server at the address; None if no greeting arrives within `patience` seconds.

    Nothing is sent, and no more bytes are read than the longest greeting has. A guest may report an address of this
    host, for example of a bridge; such addresses are never queried. A server counts each connection without login as a
    host error (max_connect_errors), so callers must not repeat the query after a greeting.
    """
    deadline, got = time.monotonic() + patience, b""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=patience) as connection:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            return None
        while len(got) < _HEADER + _LONGEST:
            if (left := deadline - time.monotonic()) <= 0:
                return None
            connection.settimeout(left)
            more = connection.recv(_HEADER + _LONGEST - len(got))
            got += more
            greeting = read_greeting(got)
            if greeting is not None or not more or time.monotonic() >= deadline:
                return greeting
    return read_greeting(got)
