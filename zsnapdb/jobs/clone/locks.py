"""Who may work on what: one process at a time on a clone, on names and ports, on what is kept for clones to come."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.errors import PreflightError
from zsnapdb.jobs.exclusion import exclusive

PATIENCE = 60.0
_TURN_SECONDS = 3600.0
_LOOK_SECONDS = 0.05


def names_and_ports() -> contextlib.AbstractContextManager[None]:
    """Be the only one that takes a name or a port. Held briefly; nothing slow is done under it."""
    return exclusive("clones", doing="making a clone", patience=PATIENCE)


def on_clone(name: str, *, patience: float = PATIENCE) -> contextlib.AbstractContextManager[None]:
    """Be the only one that changes the clone of that name.

    Whoever holds it reads the clone's facts again: they may have changed.
    """
    return exclusive(f"clone-{name}", doing=f"working on clone {name}", patience=patience)


def on_live_sets(instance: str) -> contextlib.AbstractContextManager[None]:
    """Be the only one that takes or removes snapshot sets of the instance that are no backups."""
    return exclusive(f"live-{instance}", doing=f"cloning the live state of {instance}", patience=10 * PATIENCE)


def on_kept(name: str) -> contextlib.AbstractContextManager[None]:
    """Be the only one that makes or removes what is kept under that name for clones to come."""
    return exclusive(f"kept-{name}", doing=f"receiving or preparing {name}", patience=3600.0)


@contextlib.contextmanager
def if_free(name: str, folder: Path | None = None) -> Iterator[bool]:
    """Hold the lock of that name and yield True; or yield False at once if somebody else holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(name, doing="at work", folder=folder))
        except PreflightError:
            yield False
            return
        yield True


@contextlib.contextmanager
def turn(places: int | None = None, *, patience: float = _TURN_SECONDS, folder: Path | None = None) -> Iterator[None]:
    """Be one of the few on this host that clone volumes or start a server now: as many as there are processors for us.

    The others wait.

    Ten servers that start at once on one processor take longer than one after the other, and the source's commits wait
    for all of them. Nothing else is to be waited for by who has a turn. PreflightError after `patience` seconds.
    """
    places = len(os.sched_getaffinity(0)) if places is None else places
    deadline = time.monotonic() + patience
    for number in itertools.cycle(range(places)):
        with if_free(f"clone-turn-{number}", folder) as mine:
            if mine:
                yield
                return
        if number == places - 1:
            if time.monotonic() > deadline:
                raise PreflightError(
                    f"no turn to start a server within {patience:.0f} s",
                    hint="see what other zsnapdb processes are at with `ps`",
                )
            time.sleep(_LOOK_SECONDS)
