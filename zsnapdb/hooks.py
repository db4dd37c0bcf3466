"""Runs a site's own scripts around a snapshot.

No shell, a documented environment, a time limit that holds for all they start.
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

from zsnapdb.errors import HookError

GRACE_SECONDS = 1.0
"""How long a process group has between SIGTERM and SIGKILL."""
KILLED_SECONDS = 10.0
"""How long killed processes are waited for: the kernel cannot end one that waits for a device or a network mount."""
_OUTPUT_BYTES = 4000


class When(StrEnum):
    """When a hook runs: before the lock is tried, under it, after it is gone in any way; or to mask a clone."""

    BEFORE = "before"
    LOCKED = "locked"
    AFTER = "after"
    MASK = "mask"


class OnFailure(StrEnum):
    """What a hook's failure means: the backup ends, or goes on with a warning."""

    ABORT = "abort"
    WARN = "warn"


@dataclass(frozen=True)
class Hook:
    """A script with its arguments; `timeout` in seconds."""

    when: When
    argv: tuple[str, ...]
    timeout: float
    on_failure: OnFailure = OnFailure.ABORT

    def describe(self) -> str:
        """Return it in a few words."""
        return f"{' '.join(self.argv)} ({self.when}, at most {self.timeout:g} s)"


def check(hook: Hook) -> None:
    """Raise HookError unless the script is there and may be executed by whoever runs zsnapdb."""
    program = Path(hook.argv[0])
    if not program.is_absolute():
        raise HookError(
            f"hook {hook.argv[0]} is not an absolute path", hint="name the script with its whole path in run"
        )
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise HookError(f"hook {program} is not an executable file", hint="check the path, and `chmod +x` it")


def run(hook: Hook, environment: Mapping[str, str], *, limit: float | None = None) -> str:
    """Run the hook to its end and return what it printed. HookError if it fails, cannot be started or takes too long.

    `environment` is added to ours. `limit` in seconds cuts the hook's own timeout short: what is left of the lock. It
    gets a process group of its own. At the limit the whole group is asked to end (SIGTERM), then killed, and every
    process of it is waited for; the error names those that even SIGKILL does not end.
    """
    seconds = hook.timeout if limit is None else max(0.0, min(hook.timeout, limit))
    process: subprocess.Popen[bytes] | None = None
    status: int | None = None
    left: tuple[int, ...] = ()
    with tempfile.TemporaryFile() as output:
        try:
            with _signals_wait():
                process = _start(hook, environment, output)
            status = process.wait(seconds)
        except BaseException as error:
            left = _end_group(process) if process is not None else ()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - _OUTPUT_BYTES))
        text = output.read().decode(errors="replace").strip()
    if status is None:
        raise HookError(
            _failed(hook, f"did not end within {seconds:.1f} s and was {_how_it_ended(left)}", text),
            hint="raise its timeout, or let it do less",
        )
    if status != 0:
        raise HookError(
            _failed(hook, f"ended with exit status {status}", text),
            hint="see what it printed; on_failure = 'warn' would go on",
        )
    return text


def _start(hook: Hook, environment: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            hook.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise HookError(
            f"hook {hook.argv[0]} cannot be started: {error.strerror}",
            hint="check the path, `chmod +x`, and its first line",
        ) from error


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Call the handlers of signals that arrive in the block at its end: no exception of theirs hides a new process."""
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
        for late in arrived:
            signal.raise_signal(late)


def _failed(hook: Hook, what: str, text: str) -> str:
    return f"hook {hook.argv[0]} ({hook.when}) {what}" + (f"; it printed: {text}" if text else "")


def _how_it_ended(left: Sequence[int]) -> str:
    if not left:
        return "ended"
    return f"killed, but process {', '.join(map(str, left))} does not end"


def _end_group(process: subprocess.Popen[bytes]) -> tuple[int, ...]:
    """Leave nothing of the hook's process group running: not the script, not what it started.

    Return the ids of processes that are still there `KILLED_SECONDS` after SIGKILL.
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

    One that has ended counts as gone even if its parent, which may be process 1 by now, has not asked for its status.
    """
    running = tuple(number for number, group, state in _processes() if group == leader.pid and state not in "ZX")
    leader.poll()
    return running


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield id, process group and state (proc_pid_stat(5)) of every process of this machine."""
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name of the program, in parentheses, may hold anything.
                fields = Path(folder.path, "stat").read_bytes().rpartition(b")")[2].split()
                yield int(folder.name), int(fields[2]), fields[0].decode()


def environment(
    when: When, *, instance: str, backup_id: str, lock: str, snapshots: Sequence[str], outcome: str = ""
) -> dict[str, str]:
    """Return the variables a hook finds; hooks/README.md documents them."""
    return {
        "ZSNAPDB_HOOK": when.value,
        "ZSNAPDB_INSTANCE": instance,
        "ZSNAPDB_BACKUP_ID": backup_id,
        "ZSNAPDB_LOCK": lock,
        "ZSNAPDB_SNAPSHOTS": " ".join(snapshots),
        "ZSNAPDB_OUTCOME": outcome,
    }
