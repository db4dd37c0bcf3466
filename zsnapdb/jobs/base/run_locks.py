"""Mutual exclusion of runs: locks between runs on this host, and the repository's writer lease between hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from zsnapdb.base.errors import BusyError
from zsnapdb.base.files import lock_file, open_lock
from zsnapdb.jobs.base.host import THIS_HOST

if TYPE_CHECKING:
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.repository.repository import Repository

_HOLDER = re.compile(r"([0-9]{1,20}) ([^\n]{1,200})\n")
"""The content of a lock file: the process that holds the lock, and what this process is doing."""
_LONGEST = 1000
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 60.0
"""The time in seconds that a run may need to verify finished snapshots."""


@contextlib.contextmanager
def exclusive(
    name: str,
    *,
    doing: str,
    patience: float = 0.0,
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Run the block as the only holder of the lock `name` on this host.

    The lock files are in `folder`, or in this host's folder if it is None. If this run has to wait, the function `tell`
    gets a message. Afterwards the lock file is removed. Raises BusyError if another run still holds the lock after
    `patience` seconds, and PreflightError if the lock file cannot be created.
    """
    folder = folder or THIS_HOST.run
    with exclusive_with_child(name, doing=doing, patience=patience, folder=folder, tell=tell) as opened:
        try:
            yield
        finally:
            # Remove the lock file. Many locks are named after a clone or a snapshot set, so their files would
            # accumulate.
            with contextlib.suppress(OSError):
                path = lock_file(folder, _file_name(name))
                # If the file was removed in the meantime, another run may hold a lock on a new file with that name.
                if os.path.samestat(os.fstat(opened), os.lstat(path)):
                    path.unlink()


@contextlib.contextmanager
def shared(name: str, *, patience: float, folder: Path | None = None) -> Iterator[None]:
    """Run the block with a shared lock `name`. Meanwhile no run holds the lock exclusively (flock(2)).

    The last holder removes the lock file. Raises the errors of `exclusive`.
    """
    folder, deadline = folder or THIS_HOST.run, time.monotonic() + patience
    while True:
        with open_lock(folder, _file_name(name)) as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_nlink:
                    try:
                        yield
                    finally:
                        with contextlib.suppress(OSError):
                            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            if os.fstat(file.fileno()).st_nlink:
                                lock_file(folder, _file_name(name)).unlink()
                    return
                continue
            if time.monotonic() >= deadline:
                raise BusyError(f"another zsnapdb is running: {_holder(file)}", hint="wait until it ends; see `ps`")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def exclusive_with_child(
    name: str,
    *,
    doing: str,
    patience: float = 0.0,
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[int]:
    """Take the lock like `exclusive`, and yield its descriptor.

    A child process that inherits the descriptor holds the lock until the child ends, even if this process dies first
    (flock(2)). For this reason the lock file is not removed here.
    """
    deadline, is_told = time.monotonic() + patience, False
    while True:
        with open_lock(folder or THIS_HOST.run, _file_name(name)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BusyError(
                        f"another zsnapdb is running: {_holder(file)}",
                        hint="wait until it ends (--wait DURATION does, where a command has it); see it with `ps`",
                    ) from None
                if not is_told:
                    tell(f"waiting up to {patience:g} s for another zsnapdb: {_holder(file)}")
                    is_told = True
            else:
                # If the last holder removed the file after this run had opened it, other runs lock a new file. Then
                # this lock excludes no run.
                if os.fstat(file.fileno()).st_nlink:
                    file.truncate(0)
                    file.write(f"{os.getpid()} {doing}\n")
                    file.flush()
                    yield file.fileno()
                    return
                continue
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def if_free(name: str, folder: Path | None = None) -> Iterator[bool]:
    """Yield True and hold the lock during the block. If another process holds the lock, yield False immediately."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(name, doing="working", folder=folder))
        except BusyError:
            yield False
            return
        yield True


def is_held(name: str, folder: Path | None = None) -> bool:
    """Return whether a run of this host holds the lock now, according to the kernel. The lock is not taken.

    If the kernel does not list locks, return False. /proc/locks lists each lock with its process and inode
    (proc_locks(5)). The device number in this list differs from that of stat(2), so only the inode is compared.
    """
    path = lock_file(folder or THIS_HOST.run, _file_name(name))
    try:
        inode, holder = path.lstat().st_ino, _HOLDER.fullmatch(path.read_text(errors="replace"))
        taken = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return False
    # A line is `1: FLOCK ADVISORY WRITE 708 08:02:1050 0 EOF`.
    return holder is not None and any(
        words[1:2] == ["FLOCK"] and words[4:5] == [holder[1]] and words[5].rpartition(":")[2] == str(inode)
        for words in taken
    )


def _file_name(name: str) -> str:
    return name.replace("/", "-")


def _holder(file: TextIO) -> str:
    """Return the holder from the lock file. The current holder may not have written its description yet."""
    file.seek(0)
    match = _HOLDER.fullmatch(file.read(_LONGEST))
    return f"process {match[1]} is {match[2]}" if match else "an unknown process"


def lock_server_work(instance: Instance) -> contextlib.AbstractContextManager[None]:
    """Hold the lock for work on the instance's server.

    Meanwhile no other run of this host locks the server or cleans up after a killed run. Such runs end within
    `lock.budget`, so this run waits for them.
    """
    return exclusive(
        f"source-{instance.name}",
        doing=f"snapshotting instance {instance.name}",
        patience=max(instance.wait, instance.settings.lock.budget + _GRACE_SECONDS),
        folder=instance.host.run,
    )


def lock_instance(instance: Instance, name: str, doing: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock `name` of the instance on this host. If another run holds it, wait as long as `--wait` allows."""
    return exclusive(
        f"{name}-{instance.name}",
        doing=f"{doing} instance {instance.name}",
        patience=instance.wait,
        folder=instance.host.run,
        tell=instance.events.tell,
    )


def is_at_work(instance: Instance, name: str) -> bool:
    """Return whether a run of this host holds the lock `name` of the instance now."""
    return is_held(f"{name}-{instance.name}", instance.host.run)


@contextlib.contextmanager
def hold_writer_lease(instance: Instance, repository: Repository, doing: str) -> Iterator[Callable[[], None]]:
    """Run the block while no other process on any host can write backups of the instance to the repository.

    Yield a function that raises LeaseError once the lease is lost.
    """
    from zsnapdb.repository.writer_lease import lease

    with (
        lock_instance(instance, "backup", doing),
        lease(
            repository,
            f"{instance.name}/writer",
            doing=f"{doing} {instance.name}",
            tell=instance.events.tell,
            patience=instance.wait,
        ) as writer_lease,
    ):
        yield writer_lease.check
