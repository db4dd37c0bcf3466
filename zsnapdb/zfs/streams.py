"""`zfs send` and `zfs receive` as processes. Each exit status is checked."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from zsnapdb.base import program_start
from zsnapdb.base.errors import CommandError, ZsnapdbError
from zsnapdb.zfs import command, datasets
from zsnapdb.zfs.command import ZFS, rows, set_options

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


_PIPE_BYTES = 1 << 20
_KEPT_STDERR = 8192
_ESTIMATE_SECONDS = 20.0
QUIET_SECONDS = 1800.0
"""Seconds after which a stream that transfers no byte is treated as stuck.

The total duration of a stream is not limited.
"""
_JOIN_SECONDS = 10.0


def _stuck(argv: Sequence[str]) -> CommandError:
    return CommandError(
        f"`{' '.join(argv)}` has moved no byte for {QUIET_SECONDS / 60:.0f} minutes and was killed",
        hint="see `zpool status` and the kernel's log: a pool that is suspended lets no command end",
    )


class _WatchedPipe(io.RawIOBase):
    """The pipe to or from a `zfs` process.

    A read or write raises CommandError if no byte is transferred for too long.
    """

    def __init__(self, pipe: BinaryIO, argv: Sequence[str], event: int) -> None:
        self._pipe, self._argv, self._event = pipe, argv, event
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), event)
        if event == select.POLLOUT:
            # In blocking mode, a write larger than the pipe's free space would block in the kernel without limit.
            os.set_blocking(pipe.fileno(), False)

    def readable(self) -> bool:
        return self._event == select.POLLIN

    def writable(self) -> bool:
        return self._event == select.POLLOUT

    def fileno(self) -> int:
        return self._pipe.fileno()

    def _wait(self) -> None:
        if not self._poll.poll(program_start.poll_timeout(QUIET_SECONDS)):
            raise _stuck(self._argv)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._wait()
        return os.readv(self._pipe.fileno(), [buffer])

    def write(self, data: ReadableBuffer, /) -> int:
        while True:
            self._wait()
            with contextlib.suppress(BlockingIOError):
                return os.write(self._pipe.fileno(), data)

    def close(self) -> None:
        self._pipe.close()
        super().close()


@dataclass
class _Child:
    """A child process. A thread reads the process's stderr all the time, so the process never blocks on it."""

    argv: list[str]
    process: subprocess.Popen[bytes]
    stderr: bytearray = field(default_factory=bytearray)
    reader: threading.Thread | None = None
    pipe: BinaryIO | None = None
    """The stream's bytes, unbuffered and watched."""

    @classmethod
    def start(cls, argv: list[str], *, stdin: int, stdout: int) -> _Child:
        try:
            # If `zfs send` shared this process's group, Ctrl-Z would also stop `zfs send`, which ends when it is
            # continued. If this process dies, `zfs send` detects the closed pipe.
            process = program_start.start(argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, own_group=True)
        except OSError as error:
            raise command.not_started(argv[0], error) from error
        child = cls(argv, process)
        child.reader = threading.Thread(target=child._drain, name="stderr", daemon=True)
        child.reader.start()
        data, event = (process.stdin, select.POLLOUT) if process.stdin is not None else (process.stdout, select.POLLIN)
        assert data is not None
        # A large pipe saves wake-ups. If the limit for unprivileged users is lower, the pipe keeps its default size.
        with contextlib.suppress(OSError):
            fcntl.fcntl(cast(BinaryIO, data).fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        child.pipe = cast(BinaryIO, _WatchedPipe(cast(BinaryIO, data), argv, event))
        return child

    def _drain(self) -> None:
        pipe = cast(BinaryIO, self.process.stderr)
        while data := pipe.read(4096):
            self.stderr += data
            del self.stderr[:-_KEPT_STDERR]

    def finish(self) -> None:
        try:
            status = self.process.wait(QUIET_SECONDS)
        except subprocess.TimeoutExpired:
            raise _stuck(self.argv) from None
        if self.reader is not None:
            self.reader.join(_JOIN_SECONDS)
        if status != 0:
            raise command.failure(self.argv, status, self.stderr.decode(errors="replace"))

    def stop(self) -> None:
        if self.process.poll() is None:
            program_start.kill(self.process)
        if self.reader is not None:
            self.reader.join(_JOIN_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class _Stream:
    """A running `zfs send` or `zfs receive`. Leaving the block always ends the process."""

    def __init__(self, argv: list[str], *, stdin: int, stdout: int) -> None:
        self.argv, self._stdin, self._stdout = argv, stdin, stdout
        self._running: _Child | None = None

    def __enter__(self) -> Self:
        self._running = _Child.start(self.argv, stdin=self._stdin, stdout=self._stdout)
        return self

    @property
    def _child(self) -> _Child:
        assert self._running is not None
        return self._running

    @property
    def pipe(self) -> BinaryIO:
        """The stream's bytes, unbuffered.

        A read or write raises CommandError if no byte is transferred for QUIET_SECONDS.
        """
        assert self._child.pipe is not None
        return self._child.pipe

    def finish(self) -> None:
        """Wait for the end of the process; call this after the last byte.

        Raise the error for the failure unless the exit status is 0.
        """
        self._child.finish()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()


class SendStream(_Stream):
    """A running `zfs send` of one snapshot. Leaving the block always ends the process."""

    def __init__(self, snapshot: str, base: str | None, flags: Sequence[str]) -> None:
        """`base` is a snapshot or bookmark of the same dataset, or None for a full stream."""
        argv = [ZFS, "send", *flags, *(["-i", base] if base else []), snapshot]
        super().__init__(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def raise_its_own_error(self, seconds: float = 5.0) -> None:
        """Raise the process's error if it has failed or fails within `seconds`.

        When this method returns, the process may still be running.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(seconds)
            self._child.finish()


class ReceiveStream(_Stream):
    """A running `zfs receive -u` into one dataset, which stays unmounted. Leaving the block always ends the process.

    If the stream is incomplete, `zfs receive` discards the received part of the snapshot. With `keeps_part` (-s), `zfs
    receive` saves this part, and a later stream can resume from its end.
    """

    def __init__(self, dataset: str, properties: Mapping[str, str], *, keeps_part: bool = False) -> None:
        argv = [ZFS, "receive", *(["-s"] if keeps_part else []), "-u", *set_options(properties), dataset]
        super().__init__(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def finish(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.pipe.close()
        super().finish()


def estimate(snapshot: str, base: str | None, flags: Sequence[str]) -> int | None:
    """Return the approximate size of the stream in bytes; None if unknown. Use the size only to show progress.

    This function never raises an error. With a bookmark as the base, `zfs send -n` reads the metadata of the whole
    dataset, which can take minutes on a busy pool. So the command is stopped after 20 seconds.
    """
    argv: Sequence[str] = [ZFS, "send", "-n", "-P", *flags, *(["-i", base] if base else []), snapshot]
    with contextlib.suppress(ZsnapdbError, ValueError, IndexError):
        return next((int(row[1]) for row in rows(argv, timeout=_ESTIMATE_SECONDS) if row[0] == "size"), None)
    return None


RESUME_STATE = "receive_resume_token"
"""Property with the point from which a receive can resume.

The property is "-" if no receive was interrupted (zfsprops(7)).
"""


def token(dataset: str) -> str | None:
    """Return the resume token of the interrupted receive into the dataset; None if no receive was interrupted.

    A receive that is still running also has a token. Raises NotFound if the dataset does not exist.
    """
    value = datasets.properties(dataset, [RESUME_STATE])[RESUME_STATE].value
    return None if value in ("", datasets.UNSET) else value


def is_being_received(dataset: str, proc: Path = Path("/proc")) -> bool:
    """Whether a `zfs receive` into the dataset is running on this host, with the arguments that zsnapdb uses.

    If the writer of a stream dies, the receive ends a moment later. ZFS itself refuses a second receive. A process with
    another real uid is ignored, because any account can choose the arguments of its processes.
    """
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                status = (entry / "status").read_text(errors="replace")
            except OSError:
                continue
            is_ours = f"\nUid:\t{os.getuid()}\t" in status
            if is_ours and words[1:2] == [b"receive"] and words[-2:-1] == [dataset.encode()]:
                return True
    return False
