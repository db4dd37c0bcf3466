"""Locks on this host for a clone, for names and ports, and for the sets from which clones are created."""

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
    """Take the lock for reserving a clone's name or port. Callers must do only fast work under this lock."""
    return exclusive("clones", doing="making a clone", patience=PATIENCE)


def name_of_pool(instance: str) -> str:
    """Return the name of the lock that a filling of the instance's pool holds."""
    return f"pool-{instance}"


def name_of_clone(name: str) -> str:
    """Return the name of the clone's lock."""
    return f"clone-{name}"


def lock_clone(name: str, *, patience: float = PATIENCE) -> contextlib.AbstractContextManager[None]:
    """Take the lock for changes of the clone whose dataset has the given name.

    Read the clone's properties again after taking the lock, because another process may have changed them.
    """
    return exclusive(name_of_clone(name), doing=f"working on clone {name}", patience=patience)


def name_of_maker(name: str) -> str:
    """Return the name of the lock that the creating command holds for its ephemeral clone."""
    return f"maker-{name}"


def lock_ephemeral_maker(name: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock by which a command shows that it still uses its ephemeral clone.

    When the lock is released, `reap` removes the clone.
    """
    return exclusive(name_of_maker(name), doing=f"using clone {name}")


def lock_live_sets(instance: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock for creating or removing live sets (snapshot sets that are not backups) of the instance."""
    return exclusive(f"live-{instance}", doing=f"cloning the live state of {instance}", patience=10 * PATIENCE)


def name_of_reusable_set(kind: str, set_id: str) -> str:
    """Return the name of the lock for a received or prepared set."""
    return f"{kind}-{set_id}"


def lock_reusable_set(kind: str, set_id: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock for creating or removing the received or prepared set."""
    name = name_of_reusable_set(kind, set_id)
    return exclusive(name, doing=f"making the {kind} set {set_id}", patience=3600.0)


def using_received(instance: str) -> contextlib.AbstractContextManager[None]:
    """Prevent the removal of unused received sets of the instance. Several processes may hold this lock together."""
    return shared(f"received-of-{instance}", patience=PATIENCE)


def if_none_uses_received(instance: str) -> contextlib.AbstractContextManager[bool]:
    """Yield True if no process is about to clone a received set of the instance.

    A process that wants to clone a received set waits until the block ends.
    """
    return if_free(f"received-of-{instance}")


@contextlib.contextmanager
def wait_for_turn(
    places: int | None = None, *, patience: float = _TURN_SECONDS, folder: Path | None = None
) -> Iterator[None]:
    """Wait for one of this host's turns, and keep the turn during the block.

    A process needs a turn to clone volumes or to start a server. There are `places` turns. If `places` is None, there
    is one turn for each processor that this process may use. On one processor, ten servers start faster, and delay the
    source's commits less, if they start one after the other. A process that has a turn must not wait for another lock.

    Raises:
        BusyError: no turn was free for `patience` seconds.
    """
    places = len(os.sched_getaffinity(0)) if places is None else places
    deadline = time.monotonic() + patience
    for number in itertools.cycle(range(places)):
        # No lock of a clone may have this name, because users choose the names of clones.
        with if_free(f"turn-{number}", folder) as is_free:
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
