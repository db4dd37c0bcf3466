"""Locks of this host: on a clone, on names and ports, and on the sets from which clones are created."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.base.errors import BusyError
from zsnapdb.jobs.base.run_locks import exclusive, if_free, shared

PATIENCE = 60.0
_TURN_SECONDS = 3600.0
_POLL_SECONDS = 0.05


def names_and_ports() -> contextlib.AbstractContextManager[None]:
    """Take the lock for reserving a clone's name or port. No slow action runs under this lock."""
    return exclusive("clones", doing="making a clone", patience=PATIENCE)


def name_of_clone(name: str) -> str:
    """Return the name of the clone's lock."""
    return f"clone-{name}"


def on_clone(name: str, *, patience: float = PATIENCE) -> contextlib.AbstractContextManager[None]:
    """Take the lock for changes of the clone whose dataset has that name.

    The process reads the clone's properties again under the lock, because they may have changed.
    """
    return exclusive(name_of_clone(name), doing=f"working on clone {name}", patience=patience)


def name_of_maker(name: str) -> str:
    """Return the lock name of the command that created the ephemeral clone with that name."""
    return f"maker-{name}"


def ephemeral_owner(name: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the command for which the ephemeral clone is created.

    Without the lock `reap` removes the clone.
    """
    return exclusive(name_of_maker(name), doing=f"using clone {name}")


def check_live_sets(instance: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock for taking or removing live sets (snapshot sets that are no backups) of the instance."""
    return exclusive(f"live-{instance}", doing=f"cloning the live state of {instance}", patience=10 * PATIENCE)


def name_of_reusable_set(kind: str, set_id: str) -> str:
    """Return the name of the lock of a received or prepared set."""
    return f"{kind}-{set_id}"


def check_reusable_set(kind: str, set_id: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock for making or removing the received or prepared set."""
    name = name_of_reusable_set(kind, set_id)
    return exclusive(name, doing=f"making the {kind} set {set_id}", patience=3600.0)


def using_received(instance: str) -> contextlib.AbstractContextManager[None]:
    """Keep unused received sets of the instance from being removed. Several processes may hold this lock."""
    return shared(f"received-of-{instance}", patience=PATIENCE)


def if_none_uses_received(instance: str) -> contextlib.AbstractContextManager[bool]:
    """Yield whether no process is about to clone a received set of the instance; exclude such processes meanwhile."""
    return if_free(f"received-of-{instance}")


@contextlib.contextmanager
def turn(places: int | None = None, *, patience: float = _TURN_SECONDS, folder: Path | None = None) -> Iterator[None]:
    """Wait for one of the turns on this host, and hold it: only then a process clones volumes or starts a server.

    There are `places` turns (None: the number of processors of this process). Ten servers that start together on one
    processor take longer than one after the other, and the source's commits wait for all of them. During its turn a
    process must not wait for another lock.

    Raises:
        BusyError: no turn was free for `patience` seconds.
    """
    places = len(os.sched_getaffinity(0)) if places is None else places
    deadline = time.monotonic() + patience
    for number in itertools.cycle(range(places)):
        with if_free(f"clone-turn-{number}", folder) as is_free:
            if is_free:
                yield
                return
        if number == places - 1:
            if time.monotonic() > deadline:
                raise BusyError(
                    f"other servers are starting, and none had finished after {patience:.0f} s",
                    hint="look at the other zsnapdb processes with `ps`",
                )
            time.sleep(_POLL_SECONDS)
