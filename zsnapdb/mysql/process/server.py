"""The private files, the start and the stop of servers that zsnapdb starts. Never changes other servers."""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import select
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConsistencyError, PreflightError, ServerError
from zsnapdb.base.program_start import poll_timeout
from zsnapdb.base.safe_open import Owner, UnsafeFileError
from zsnapdb.mysql.process import process_managers as sandboxes
from zsnapdb.mysql.process.discovery import is_server_program
from zsnapdb.mysql.process.process_managers import Launched, Limits, ProcessManager, is_younger
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.server_copy.sandbox import Sandbox, breaches
from zsnapdb.planning.server_family import family

PRIVATE_FOLDER = ".zsnapdb"
"""The folder with the files that zsnapdb needs to run a server, next to the server's mounted volumes."""
_OPTION = "--defaults-file="
_SOCKET_LIMIT = 107
"""Maximum length in bytes of a Unix socket's path (unix(7))."""

_GREETING_SECONDS = 10.0
_ENTERING_SECONDS = 60.0
"""Seconds within which a started server changes into its data directory. It recovers its files only afterwards."""
_TAIL_BYTES = 64 << 10

_PLACES = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/libexec",
    "/usr/local/libexec",
    "/usr/local/mysql/bin",
    "/usr/bin",
    "/usr/local/bin",
)


def find_binary(configured: Path | None, flavour: Flavour) -> Path:
    """Return the configured server program, or else a program in the usual folders.

    Raises PreflightError if neither exists.
    """
    if configured is not None:
        if not os.access(configured, os.X_OK):
            raise PreflightError(
                f"server.binary {configured} cannot be executed",
                hint="set server.binary to the mysqld or mariadbd of the instance's version",
            )
        return configured
    for name in family(flavour).server_programs:
        program = shutil.which(name, path=os.pathsep.join(_PLACES))
        if program:
            return Path(program)
    raise PreflightError(f"no server program for {flavour} was found", hint="set server.binary of the instance")


def account(user: str) -> tuple[int, int]:
    """Return the uid and gid of the account that the server runs as.

    Raises PreflightError if the account does not exist.
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise PreflightError(
            f"the account {user} of server.user does not exist", hint="set server.user of the instance"
        ) from error
    return entry.pw_uid, grp.getgrgid(entry.pw_gid).gr_gid


def owner_of_files(datadir: str) -> tuple[int, int] | None:
    """Return the uid of a data directory's owner on this host, and the primary gid of that account.

    The result is None if root owns the data directory, or if it does not exist on this host.
    """
    try:
        status = os.stat(datadir)
    except OSError:
        return None
    if status.st_uid == 0:
        return None
    try:
        return status.st_uid, pwd.getpwuid(status.st_uid).pw_gid
    except KeyError:
        return status.st_uid, status.st_gid


def make_private_folder(folder: Path, user: str) -> None:
    """Create the folder for the socket, pid file, log and temporary files. Only the server's account can enter it."""
    if len(str(folder / "server.sock").encode()) > _SOCKET_LIMIT:
        raise PreflightError(
            f"{folder}/server.sock is longer than {_SOCKET_LIMIT} bytes", hint="choose a shorter name or mount_root"
        )
    for path in (folder, folder / "tmp"):
        _made_anew_if_planted(path, functools.partial(safe_open.make_folder, path, Owner(*account(user))))


def _made_anew_if_planted(path: Path, make: Callable[[], object]) -> None:
    """Create a private path.

    If the server's account has created a link, pipe or file at this path, remove it first.
    """
    try:
        make()
    except (UnsafeFileError, NotADirectoryError, IsADirectoryError):
        safe_open.remove_tree(path)
        make()


def write_private(path: Path, text: str, user: str) -> None:
    """Write a file that only the server's account can read. An existing file is replaced."""
    safe_open.write_text(path, text, Owner(*account(user)))


class _Proof(Enum):
    """The evidence that a process is a server of zsnapdb. A working directory is stronger evidence than an account."""

    PLACE = "place"
    ACCOUNT = "account"


class OptionFileUsers:
    """Finds the processes whose command lines contain an option file.

    The processes are scanned once, at the first request.
    """

    def of(self, option_file: Path) -> Sequence[int]:
        """Return the processes whose command lines contain this file. Do not check the owners of the processes."""
        return self._found.get(f"{_OPTION}{option_file}".encode(), ())

    @functools.cached_property
    def _found(self) -> Mapping[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for name in os.listdir("/proc"):
            # Skip entries that are not processes, and processes that have just ended.
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdecimal() else []
                for word in words:
                    if word.startswith(_OPTION.encode()):
                        found.setdefault(word, []).append(int(name))
        return found


@dataclass(frozen=True)
class ServerProcess:
    """A server of zsnapdb, running or not. The private folder identifies the server."""

    folder: Path

    @property
    def option_file(self) -> Path:
        return self.folder / "server.cnf"

    @property
    def socket(self) -> Path:
        return self.folder / "server.sock"

    @property
    def pid_file(self) -> Path:
        return self.folder / "server.pid"

    @property
    def error_log(self) -> Path:
        return self.folder / "error.log"

    def pid(self, users: OptionFileUsers | None = None) -> int | None:
        """Return the process id if the server is running. The process's command line must contain the option file.

        The pid file is read first. A starting server has no pid file yet, and the file can be lost. In these cases, the
        process is searched in `users` (None means the current processes). A caller with many servers passes the same
        object for all servers. A process whose working directory is the data directory is preferred to a process that
        has just started, which may belong to another server.
        """
        with contextlib.suppress(OSError, ValueError, UnsafeFileError):
            number = int(safe_open.read_text(self.pid_file))
            if self._is_ours(number) is _Proof.PLACE:
                return number
        known = (users or OptionFileUsers()).of(self.option_file)
        proofs = {number: self._is_ours(number) for number in known}
        return next((number for proof in _Proof for number in known if proofs[number] is proof), None)

    def _is_named_by(self, number: int) -> bool:
        """Return whether the command line of the process contains the option file."""
        with contextlib.suppress(OSError):
            return f"{_OPTION}{self.option_file}".encode() in Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        return False

    def _is_ours(self, number: int) -> _Proof | None:
        """Return the evidence that the process is this server; None if nothing proves this.

        The command line alone proves nothing. The process must run a server program. A server program whose working
        directory is the data directory suffices, even if the private folder was lost. A process in another folder of
        this host is rejected, unless it has just started and may not have entered its data directory yet. A process
        that does not see the private folder's file system is rejected too. The servers of all clones may have the same
        account, but in its sandbox each server sees only its own datasets.
        """
        process = Path(f"/proc/{number}")
        if not self._is_named_by(number):
            return None
        try:
            # A process can change the owner of its /proc/PID (proc(5), dumpable), but not its real uid.
            status = (process / "status").read_text(errors="replace")
            place, folder = Path(os.readlink(process / "cwd")), os.stat(process / "cwd")
        except OSError:
            return None
        if not is_server_program(process):
            return None
        # In another mount namespace, the same path may be another folder (mount_namespaces(7)).
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(place), folder):
                if place.is_relative_to(os.path.realpath(self.folder.parent)):
                    return _Proof.PLACE
                if not is_younger(number, _ENTERING_SECONDS):
                    return None
        uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
        try:
            files = os.lstat(self.folder)
        except OSError:
            return _Proof.ACCOUNT if uid in {0, os.geteuid()} else None
        with contextlib.suppress(OSError):
            if uid in {0, os.geteuid(), files.st_uid} and files.st_dev in sandboxes.mounted_devices(process):
                return _Proof.ACCOUNT
        return None

    def log_tail(self, lines: int = 15) -> str:
        try:
            with safe_open.open_to_read(self.error_log) as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
                return "\n".join(log.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-lines:])
        except (OSError, UnsafeFileError):
            return "(no error log)"

    def start(
        self,
        binary: Path,
        user: str,
        login: Address,
        password: SecretStr,
        *,
        timeout: float,
        manager: ProcessManager,
        limits: Limits,
        sandbox: Sandbox | None,
        zone: str | None = None,
    ) -> Session:
        """Start the server with the limits and the sandbox. Return a session as soon as the server answers.

        The account `user` owns the server's files, and runs the server from its first instruction. `login` is the
        server's address. `zone` is the time zone of the process (None means the host's time zone). Raises
        PreflightError if the sandbox cannot be built, and ConsistencyError if the server is not inside the sandbox.
        Raises ServerError with the end of the error log if the server does not answer within `timeout` seconds.
        """
        if self.pid() is not None:
            raise ServerError(f"a server already runs with {self.option_file}", hint="stop it first")
        # MySQL writes its pid to a lock file next to its socket, and does not start while a process with this pid
        # exists. After a power failure or in a copy, the pid may belong to an unrelated process.
        for stale in (self.pid_file, self.socket, self.folder / f"{self.socket.name}.lock"):
            safe_open.remove(stale)
        owner = Owner(*account(user))
        _made_anew_if_planted(self.error_log, lambda: safe_open.open_to_append(self.error_log, owner).close())
        argv = [str(binary), f"{_OPTION}{self.option_file}"]
        launched = manager.launch(self.folder.parent.name, argv, self.error_log, limits, user, sandbox, zone)
        try:
            session = self._wait_until_it_answers(launched, login, password, timeout)
            wrong = self.breaches(sandbox) if sandbox is not None else ()
            if wrong:
                raise ConsistencyError(
                    f"the server of {self.folder.parent} is not in its sandbox: {'; '.join(wrong)}",
                    hint="the server was stopped; report this error",
                )
            return session
        except BaseException:
            # Until the pid file exists, no other code can identify this process.
            launched.kill()
            raise

    def breaches(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Return every way in which the running server can access more than the sandbox allows."""
        number = self.pid()
        return ("it does not run",) if number is None else breaches(sandboxes.inspect_process(number), sandbox)

    def _wait_until_it_answers(
        self, launched: Launched, login: Address, password: SecretStr, timeout: float
    ) -> Session:
        deadline = time.monotonic() + timeout
        while True:
            end = launched.ended()
            if end is not None:
                refused = sandboxes.sandbox_refusal(self.log_tail())
                if refused is not None:
                    raise refused
                raise ServerError(
                    f"the server ended ({end}) while starting\n{self.log_tail()}",
                    hint=f"see the error log {self.error_log}",
                )
            if self.socket.exists():
                # The server may accept a first connection and never serve it. In this case, the loop tries another
                # connection.
                with contextlib.suppress(ServerError):
                    Session.open(login, password, timeout=_GREETING_SECONDS, read_timeout=_GREETING_SECONDS).close()
                    return Session.open(login, password, timeout=_GREETING_SECONDS)
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the server did not answer within {timeout:.0f} s\n{self.log_tail()}",
                    hint="raise server.start_timeout if it is still recovering",
                )
            time.sleep(0.05)

    def stop(self, *, timeout: float) -> None:
        """Shut the server down cleanly if it is running.

        Raises ServerError if the shutdown takes longer than `timeout` seconds.
        """
        number = self.pid()
        if number is not None and not _end(number, signal.SIGTERM, timeout, lambda: self._is_ours(number) is not None):
            raise ServerError(
                f"server {number} did not shut down within {timeout:.0f} s\n{self.log_tail()}",
                hint="see the error log, then stop the server by hand",
            )

    def kill(self) -> None:
        """Kill the server. Only use this for a copy that is then removed."""
        number = self.pid()
        if number is not None:
            _end(number, is_meant=lambda: self._is_ours(number) is not None)

    def kill_all(self) -> None:
        """Kill every process that was started with this option file, even if the pid file does not exist."""
        for number in OptionFileUsers().of(self.option_file):
            _end(number, is_meant=functools.partial(self._is_named_by, number))


def _end(
    number: int,
    how: signal.Signals = signal.SIGKILL,
    timeout: float | None = None,
    is_meant: Callable[[], bool] = lambda: True,
) -> bool:
    """Send a signal and wait until the process and its threads have ended. Return False after `timeout` seconds.

    The function first opens a process handle (pidfd_open(2)), so that a later process with the same id cannot get the
    signal.
    """
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        if not is_meant():
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, how)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        has_ended = bool(poll.poll(None if timeout is None else poll_timeout(timeout)))
    finally:
        os.close(handle)
    if has_ended:
        _reap(number)
    return has_ended


def _reap(number: int) -> None:
    """Collect the exit status of a process if it is a child of this process.

    Otherwise, its parent process collects the exit status.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitpid(number, 0)


_TLS_FILES = (
    *("ca.pem", "ca-key.pem", "server-cert.pem", "server-key.pem", "client-cert.pem", "client-key.pem"),
    *("private_key.pem", "public_key.pem"),
)
"""The keys and certificates that mysqld creates in its data directory. Sources: refman 8.4, "Creating SSL and RSA
Certificates and Keys using MySQL" and "Caching SHA-2 Pluggable Authentication".
"""


def remove_uuid(datadir: Path) -> None:
    """Remove auto.cnf from a copied data directory. mysqld creates a new server_uuid (refman 8.4, "server_uuid").

    The persisted variables (SET PERSIST) stay, because the copy may replace the original server.
    """
    safe_open.remove(datadir / "auto.cnf")


def remove_persisted(datadir: Path) -> None:
    """Remove the persisted variables from a copied data directory.

    Persisted variables would override the option file (WL#8688).
    """
    safe_open.remove(datadir / "mysqld-auto.cnf")


def remove_keys(datadir: Path) -> None:
    """Remove TLS keys from a copied data directory, if the original server created them.

    With these keys, a copy could pose as the original server. mysqld creates new keys when it listens on a network.
    """
    for name in _TLS_FILES:
        safe_open.remove(datadir / name)
