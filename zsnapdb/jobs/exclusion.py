"""One run at a time: locks of this host, and the writer's lease of a repository on all hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zsnapdb.errors import PreflightError
from zsnapdb.jobs.host import THIS_HOST
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.private_folder import open_lock
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import lease


@contextlib.contextmanager
def exclusive(name: str, *, doing: str, patience: float = 0.0, folder: Path | None = None) -> Iterator[None]:
    """Run the block as the only holder of the lock `name` on this host.

    `folder` contains the lock files (None: the folder of this host). PreflightError if another run still holds the
    lock after `patience` seconds.
    """
    folder = folder or THIS_HOST.run
    deadline = time.monotonic() + patience
    with open_lock(folder, name.replace("/", "-")) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    raise PreflightError(
                        f"another zsnapdb (process {file.read().strip() or 'unknown'}) is {doing}",
                        hint="wait until it ends, or look at it with `ps`",
                    ) from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def writing(instance: Instance, repository: Repository, doing: str) -> Iterator[Callable[[], None]]:
    """Run the block as the only writer, on all hosts, of the instance's part of the repository.

    Yields a function that raises LeaseError once the lease is lost.
    """
    with (
        exclusive(f"backup-{instance.name}", doing=f"{doing} instance {instance.name}", folder=instance.host.run),
        lease(
            repository, f"{instance.name}/writer", doing=f"{doing} {instance.name}", tell=instance.events.tell
        ) as writer_lease,
    ):
        yield writer_lease.check
