"""Runs a site's own scripts around a snapshot: no shell, a documented environment, a time limit that holds for all they start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zsnapdb.errors import HookError

_GRACE_SECONDS = 1.0
_OUTPUT_BYTES = 4000


class When(StrEnum):
    """When a hook runs: before the lock is tried, under it, after it is gone (however that came); or to mask a clone."""

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
    gets a process group of its own; when its time is up the whole group is asked to end (SIGTERM), then killed, and it
    is waited for.
    """
    seconds = hook.timeout if limit is None else max(0.0, min(hook.timeout, limit))
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
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
        try:
            status: int | None = process.wait(seconds)
        except BaseException as error:
            _end_group(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - _OUTPUT_BYTES))
        text = output.read().decode(errors="replace").strip()
    if status is None:
        raise HookError(
            _failed(hook, f"did not end within {seconds:.1f} s and was ended", text),
            hint="raise its timeout, or let it do less",
        )
    if status != 0:
        raise HookError(
            _failed(hook, f"ended with exit status {status}", text),
            hint="see what it printed; on_failure = 'warn' would go on",
        )
    return text


def _failed(hook: Hook, what: str, text: str) -> str:
    return f"hook {hook.argv[0]} ({hook.when}) {what}" + (f"; it printed: {text}" if text else "")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of the hook's process group running: not the script, not what it started."""
    deadline = time.monotonic() + _GRACE_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
