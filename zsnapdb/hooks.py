"""Hooks: the user's scripts that run before, during and after the lock of a backup, and at the end of the backup.

A script runs without a shell, with a documented environment, and with a timeout that also applies to its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from zsnapdb.base import program_start
from zsnapdb.base.errors import CommandError, HookError, error_class, exit_code
from zsnapdb.base.program_start import for_site

GRACE_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL for a process group."""
KILLED_SECONDS = 10.0
"""Seconds to wait for the end of killed processes.

The kernel cannot end a process that waits for a device or a network mount.
"""
_OUTPUT_BYTES = 4000
_MESSAGE_LENGTH = 1000


class When(StrEnum):
    """The occasion on which a hook runs.

    - before, locked, after: before, during or after the lock of a backup
    - done: at the end of a backup
    - mask: when the data of clones is masked
    - migration: when `migration-check` runs a migration on a clone

    `after` and `done` hooks run even if the lock or the backup failed.
    """

    BEFORE = "before"
    LOCKED = "locked"
    AFTER = "after"
    DONE = "done"
    MASK = "mask"
    MIGRATION = "migration"


class OnFailure(StrEnum):
    """The effect of a hook's failure: the backup ends, or it continues with a warning."""

    ABORT = "abort"
    WARN = "warn"


@dataclass(frozen=True)
class BackupEnd:
    """The end of a backup, for its `done` hooks: the exit code, and the class and message of the error, if any."""

    status: int = 0
    error: str = ""
    message: str = ""

    @classmethod
    def by(cls, error: BaseException) -> BackupEnd:
        """Return the end of a backup with this error."""
        return cls(exit_code(error), error_class(error), " ".join(str(error).split())[:_MESSAGE_LENGTH])

    @property
    def outcome(self) -> str:
        """The result: `ok` or `failed`."""
        return "failed" if self.status else "ok"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that only `done` hooks get, as documented in hooks/README.md."""
        return {
            "ZSNAPDB_STATUS": str(self.status),
            "ZSNAPDB_ERROR": self.error,
            "ZSNAPDB_MESSAGE": self.message.replace("\0", ""),
        }


@dataclass(frozen=True)
class Hook:
    """A script with its arguments. The timeout is in seconds; `folder` is the script's working directory."""

    when: When
    argv: tuple[str, ...]
    timeout: float
    on_failure: OnFailure = OnFailure.ABORT
    folder: Path = Path("/")

    @property
    def title(self) -> str:
        """The name of the program in error messages. A program that masks or changes a clone is not called a hook."""
        purpose = _PURPOSES.get(self.when)
        return f"the {purpose} {self.argv[0]}" if purpose is not None else f"hook {self.argv[0]} ({self.when})"

    def describe(self) -> str:
        return f"{' '.join(self.argv)} ({self.when}, at most {self.timeout:g} s)"


_PURPOSES = {When.MASK: "masking program", When.MIGRATION: "migration command"}


def check(hook: Hook) -> None:
    """Raise HookError unless the script exists and the user that runs zsnapdb can execute it."""
    program = Path(hook.argv[0])
    if not program.is_absolute():
        raise HookError(f"{hook.title} is not an absolute path", hint="write the absolute path of the script in run")
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise HookError(
            f"{hook.title} is not an executable file", hint="check the path, and run `chmod +x` on the file"
        )


def run(hook: Hook, environment: Mapping[str, str], *, limit: float | None = None) -> str:
    """Run the hook to its end and return its output.

    The hook gets `environment` and the environment of this process without secrets. The argument `limit` (in seconds)
    can shorten the hook's own timeout, for example to the remaining time of the lock. The hook gets its own process
    group. When the time is over, the group gets SIGTERM, and later SIGKILL. The function waits for every process of the
    group.

    Raise HookError if the hook fails, cannot be started or takes too long. The error names processes that SIGKILL does
    not end.
    """
    seconds = hook.timeout if limit is None else max(0.0, min(hook.timeout, limit))
    process: subprocess.Popen[bytes] | None = None
    status: int | None = None
    left: tuple[int, ...] = ()
    is_too_much = False
    with tempfile.TemporaryFile() as output:
        try:
            with _signals_wait():
                process = _start(hook, environment, output)
            status = program_start.wait(process, seconds, output)
        except BaseException as error:
            left = _end_group(process) if process is not None else ()
            is_too_much = isinstance(error, CommandError)
            if not isinstance(error, subprocess.TimeoutExpired | CommandError):
                raise
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - _OUTPUT_BYTES))
        text = output.read().decode(errors="replace").strip()
    if is_too_much:
        most = program_start.MOST_IN_FILE >> 20
        raise HookError(
            _failed(hook, f"wrote more than {most} MiB and was {_how_it_ended(left)}", text),
            hint="let the program write to its own file",
        )
    if status is None:
        raise HookError(
            _failed(hook, f"did not end within {seconds:.1f} s and was {_how_it_ended(left)}", text),
            hint="increase its timeout, or make the program faster",
        )
    if status != 0:
        raise HookError(
            _failed(hook, f"ended with exit status {status}", text),
            hint="correct the program"
            if hook.when in _PURPOSES
            else "read the output of the hook; set on_failure = 'warn' to continue after a failure",
        )
    return text


def _start(hook: Hook, environment: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            hook.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**for_site(), **environment},
            cwd=hook.folder,
            start_new_session=True,
        )
    except OSError as error:
        raise HookError(
            f"{hook.title} cannot be started: {error.strerror}",
            hint="check the path, the permission (`chmod +x`), and the first line of the file",
        ) from error


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay signal handlers until the end of the block.

    Otherwise, an exception in a handler could leave a new process untracked.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in ours:
            signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for pending in arrived:
            signal.raise_signal(pending)


def _failed(hook: Hook, what: str, text: str) -> str:
    return f"{hook.title} {what}" + (f"; it printed: {text}" if text else "")


def _how_it_ended(left: Sequence[int]) -> str:
    if not left:
        return "ended"
    return f"killed, but process {', '.join(map(str, left))} does not end"


def _end_group(process: subprocess.Popen[bytes]) -> tuple[int, ...]:
    """End all processes of the hook's process group: the script and the processes it started.

    Return the ids of processes that still run `KILLED_SECONDS` after SIGKILL.
    """
    left = _running(process)
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILLED_SECONDS)):
        if not left:
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + seconds
        while (left := _running(process)) and time.monotonic() < deadline:
            time.sleep(0.01)
    return left


def _running(leader: subprocess.Popen[bytes]) -> tuple[int, ...]:
    """Return the ids of the processes in the leader's process group that have not ended.

    A zombie counts as ended, even if its parent (possibly process 1) has not read its status.
    """
    running = tuple(number for number, group, state in _processes() if group == leader.pid and state not in "ZX")
    leader.poll()
    return running


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield the id, process group and state (proc_pid_stat(5)) of every process of this machine."""
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # The program name in parentheses may contain any character.
                fields = Path(folder.path, "stat").read_bytes().rpartition(b")")[2].split()
                yield int(folder.name), int(fields[2]), fields[0].decode()


def environment(
    when: When, *, instance: str, backup_id: str, lock: str, snapshots: Sequence[str], outcome: str = ""
) -> dict[str, str]:
    """Return the environment variables of a hook, as documented in hooks/README.md."""
    return {
        "ZSNAPDB_HOOK": when.value,
        "ZSNAPDB_INSTANCE": instance,
        "ZSNAPDB_BACKUP_ID": backup_id,
        "ZSNAPDB_LOCK": lock,
        "ZSNAPDB_SNAPSHOTS": " ".join(snapshots),
        "ZSNAPDB_OUTCOME": outcome,
    }
