"""`zfs send` and `zfs receive` as processes whose every end is looked at."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, cast

from zsnapdb.zfs import command
from zsnapdb.zfs.command import ZFS, rows, set_options

SEND_FLAGS: Mapping[str, tuple[str, ...]] = {"plain": ("-L",), "compressed": ("-L", "-c")}
"""By what `send` may be; frozen per chain.

-L keeps records over 128 KiB whole, -c leaves blocks compressed as they lie in the pool; never -D, -R, -p, -e
(zfs-send(8)).
"""

_PIPE_BYTES = 1 << 20
_KEPT_STDERR = 8192


@dataclass
class _Child:
    """A child process whose stderr is read all along, so that it can never block on it."""

    argv: list[str]
    process: subprocess.Popen[bytes]
    stderr: bytearray = field(default_factory=bytearray)
    reader: threading.Thread | None = None

    @classmethod
    def start(cls, argv: list[str], *, stdin: int, stdout: int) -> _Child:
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=command.environment(), bufsize=0
        )
        child = cls(argv, process)
        child.reader = threading.Thread(target=child._drain, name="stderr", daemon=True)
        child.reader.start()
        return child

    def _drain(self) -> None:
        pipe = cast(BinaryIO, self.process.stderr)
        while data := pipe.read(4096):
            self.stderr += data
            del self.stderr[:-_KEPT_STDERR]

    def finish(self) -> None:
        status = self.process.wait()
        if self.reader is not None:
            self.reader.join()
        if status != 0:
            raise command.failure(self.argv, status, self.stderr.decode(errors="replace"))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.reader is not None:
            self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _widen(pipe: BinaryIO) -> None:
    # A wide pipe saves wake-ups; the limit of unprivileged users may be lower, and then the default serves.
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class SendStream:
    """A running `zfs send` of one snapshot. Leaving the block ends the process whatever happened in it."""

    def __init__(self, snapshot: str, base: str | None, flags: Sequence[str]) -> None:
        """`base` is a snapshot or bookmark of the same dataset, or None for a full stream."""
        self.argv = [ZFS, "send", *flags, *(["-i", base] if base else []), snapshot]
        self._child: _Child | None = None

    def __enter__(self) -> SendStream:
        self._child = _Child.start(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        _widen(self.pipe)
        return self

    @property
    def pipe(self) -> BinaryIO:
        """The stream's bytes, unbuffered."""
        assert self._child is not None
        return cast(BinaryIO, self._child.process.stdout)

    def finish(self) -> None:
        """After the last byte: raise the classified error unless the process ended with status 0."""
        assert self._child is not None
        self._child.finish()

    def raise_its_own_error(self, seconds: float = 5.0) -> None:
        """If the process has failed by itself, or does within `seconds`, raise its error; else return.

        It may still run.
        """
        assert self._child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(seconds)
            self._child.finish()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        self._child.stop()


class ReceiveStream:
    """A running `zfs receive` into one dataset, never mounted by it (-u). Leaving the block ends the process.

    A stream cut short makes `zfs receive` drop what it had of that one snapshot (no -s), so nothing partial stays.
    """

    def __init__(self, dataset: str, properties: Mapping[str, str]) -> None:
        self.argv = [ZFS, "receive", "-u", *set_options(properties), dataset]
        self._child: _Child | None = None

    def __enter__(self) -> ReceiveStream:
        self._child = _Child.start(self.argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        _widen(self.pipe)
        return self

    @property
    def pipe(self) -> BinaryIO:
        """Where the stream's bytes go, unbuffered."""
        assert self._child is not None
        return cast(BinaryIO, self._child.process.stdin)

    def finish(self) -> None:
        """After the last byte: close the pipe; raise the classified error unless the process ended with status 0."""
        assert self._child is not None
        with contextlib.suppress(BrokenPipeError):
            self.pipe.close()
        self._child.finish()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        self._child.stop()


def estimate(snapshot: str, base: str | None, flags: Sequence[str]) -> int:
    """Return about how many bytes the send will have; for progress only, never for sizing anything."""
    argv: Sequence[str] = [ZFS, "send", "-n", "-P", *flags, *(["-i", base] if base else []), snapshot]
    sizes = [int(row[1]) for row in rows(argv) if row[0] == "size"]
    return sizes[0] if sizes else 0
