"""Starts external programs: short programs, and child processes for long work. It also defines requests to stop."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any, NoReturn, Protocol

from zsnapdb.base.errors import CommandError

_SECRET = re.compile(r"PASS|SECRET|TOKEN|CREDENTIAL|_PWD$|KEY$|_KEY_ID$|PRIVATE_?KEY|DATABASE_URL|_DSN$", re.IGNORECASE)
_TERMINAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

NO_HOME = "/dev/null"
"""A home directory in which no account can create a file."""
NO_LOGIN_PATHS: Mapping[str, str] = MappingProxyType({"MYSQL_TEST_LOGIN_FILE": f"{NO_HOME}/mylogin.cnf"})
"""Hides login paths from MySQL clients, because login paths override all option files (refman 8.4, "Environment
Variables" and "Command-Line Options that Affect Option-File Handling").
"""


def is_secret_name(name: str) -> bool:
    """Return whether the name of an environment variable indicates a secret, such as AWS_SECRET_ACCESS_KEY."""
    return _SECRET.search(name) is not None


def search_path() -> str:
    """Return the folders to search for programs: the absolute folders of PATH, then the usual system folders."""
    named = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys((*(folder for folder in named if os.path.isabs(folder)), *_FOLDERS)))


def for_programs() -> dict[str, str]:
    """Return the complete environment of a server or host program. The locale is C, because zsnapdb parses output."""
    return {"PATH": search_path(), "HOME": NO_HOME, "LC_ALL": "C", "LANGUAGE": "C", **NO_LOGIN_PATHS}


def for_terminal() -> dict[str, str]:
    """Return the complete environment for an interactive client. The client keeps no history of statements."""
    terminal = os.environ.get("TERM", "")
    shown = {"TERM": terminal} if _TERMINAL.fullmatch(terminal) else {}
    histories = dict.fromkeys(("MYSQL_HISTFILE", "MARIADB_HISTFILE"), os.devnull)
    return {**for_programs(), "LC_ALL": "C.UTF-8", **histories, **shown}


def for_site(**more: str) -> dict[str, str]:
    """Return the complete environment for a user's own program: zsnapdb's environment without secrets, plus `more`."""
    return {name: value for name, value in os.environ.items() if not is_secret_name(name)} | more


MOST_BYTES = 1 << 30
"""Maximum size in bytes of a program's output to a pipe. A list of millions of snapshots is shorter."""
MOST_IN_FILE = 256 << 20
"""Maximum number of bytes that a user's program may write to a temporary file."""
_LOOK_SECONDS = 0.2
"""Seconds between two checks whether a program ended while its child process holds the output open."""
_LONGEST_POLL = 2**31 - 1
"""Maximum timeout in milliseconds, because poll(2) takes a C int."""
_KILLED_SECONDS = 10.0

Output = IO[Any] | int


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: Output = subprocess.DEVNULL,
    stdout: Output = subprocess.PIPE,
    stderr: Output = subprocess.PIPE,
    own_group: bool = False,
    most_bytes: int = MOST_BYTES,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end. With `own_group`, Ctrl-C on the terminal does not reach the program.

    If a child process outlives the program and holds the output open, `run` does not wait for the child.

    Raises:
        OSError: the program cannot be started subprocess.TimeoutExpired: the program did not end within `timeout`
        seconds, and was killed CommandError: the program wrote more than `most_bytes` to a pipe, and was killed
    """
    process = subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=for_programs(),
        process_group=0 if own_group else None,
    )
    try:
        output, errors = _outputs(process, time.monotonic() + timeout, most_bytes)
    except BaseException as error:
        kill(process)
        if isinstance(error, TimeoutError):
            raise subprocess.TimeoutExpired(list(argv), timeout) from None
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def poll_timeout(seconds: float) -> int:
    """Convert seconds to milliseconds for poll(2) and epoll(7).

    These calls accept at most 24 days, so a longer wait ends after 24 days.
    """
    return max(0, min(math.ceil(seconds * 1000), _LONGEST_POLL))


def _outputs(process: subprocess.Popen[bytes], ends: float, most: int) -> tuple[bytes, bytes]:
    """Return the program's output until the program ends.

    Raises TimeoutError, or CommandError if the program writes too much.
    """
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, written in ((process.stdout, output), (process.stderr, errors)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, written)
        while selector.get_map():
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            has_ended = process.poll() is not None
            ready = selector.select(min(left, _LOOK_SECONDS))
            if has_ended and not ready:
                break
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                key.data.extend(part)
            if len(output) + len(errors) > most:
                raise _too_much(process, most)
    try:
        process.wait(max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    return bytes(output), bytes(errors)


def wait(process: subprocess.Popen[bytes], seconds: float, output: IO[bytes]) -> int:
    """Return the exit status of a program that writes to this file.

    Raises:
        subprocess.TimeoutExpired: the program did not end within `seconds` CommandError: the program wrote more than
        `MOST_IN_FILE` bytes
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            return process.wait(max(0.0, min(_LOOK_SECONDS, ends - time.monotonic())))
        except subprocess.TimeoutExpired:
            if os.fstat(output.fileno()).st_size > MOST_IN_FILE:
                raise _too_much(process, MOST_IN_FILE) from None
            if time.monotonic() >= ends:
                raise


def _too_much(process: subprocess.Popen[bytes], most: int) -> CommandError:
    program = str(process.args[0]) if isinstance(process.args, Sequence) else "the program"
    return CommandError(
        f"{program} wrote more than {most >> 20} MiB and was killed", hint="run it by hand and read its output"
    )


def kill(process: subprocess.Popen[bytes], *, is_group: bool = False) -> None:
    """Kill the program.

    Wait at most 10 seconds until the program ends, because a call into a suspended pool cannot be killed.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if is_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_SECONDS)


def start(
    argv: Sequence[str],
    *,
    stdin: Output = subprocess.DEVNULL,
    stdout: Output,
    stderr: Output,
    own_group: bool = False,
    own_session: bool = False,
    zone: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program with unbuffered pipes and return its process.

    With `own_session`, the program continues when this process's terminal closes. The program's time zone is `zone`, or
    the host's time zone if `zone` is None.

    Raises:
        OSError: the program cannot be started
    """
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=for_programs() if zone is None else {**for_programs(), "TZ": zone},
        bufsize=0,
        process_group=0 if own_group else None,
        start_new_session=own_session,
        cwd="/" if own_session else None,
    )


def become_user(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process with an interactive program.

    If `environment` is None, the program gets the environment of an interactive database client.
    """
    os.execve(argv[0], list(argv), for_terminal() if environment is None else environment)  # noqa: S606 - no shell


class Stop(Protocol):
    """A request to stop, which may arrive at any moment."""

    def is_set(self) -> bool:
        """Return whether the stop was requested."""

    def wait(self, seconds: float, /) -> bool:
        """Wait at most `seconds` for the request to stop. Return whether the request arrived."""


class Running(Protocol):
    """An interface for a program that runs or has ended, such as a Popen."""

    def poll(self) -> int | None:
        """Return the exit code, negative if a signal ended it; None while it runs."""


class Process(Running, Protocol):
    """A child process of this process. Only the code that started the child waits for its end."""

    @property
    def pid(self) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...
