"""A run whose id its caller chose makes at most one backup, however often the caller repeats the command.

The manifest has the id of the run that began the backup, also if another run finished it. So the repository knows what
was done, on every host, for as long as it keeps the backup.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

from zsnapdb.base.errors import BusyError, NotThere, UnreachableError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_record
from zsnapdb.repository.manifest import Manifest

_CLOCKS = timedelta(minutes=5)
"""How far clocks may be apart."""
_PATIENCE = 10.0
"""For how many seconds a store that does not answer is asked again before the snapshots are made."""


def stored(instance: Instance) -> Manifest | None:
    """Return the stored backup that the run of this id began; None if there is none, or no repository yet.

    One from the future is none: a clock that was ahead used up the id of a time of the schedule that is now.
    RepositoryError if the store cannot be read.
    """
    try:
        repository = instance.open_repository()
        known = host_record.counted(instance, repository)
        latest = instance.host.now() + _CLOCKS
        own = next((one for one in known if one.run_id == instance.host.run_id() and one.created <= latest), None)
        return repository.manifest(instance.name, own.backup_id) if own is not None else None
    except NotThere:
        return None


def stored_if_known(instance: Instance) -> Manifest | None:
    """Return the same before anything is done. None also if the store does not answer: it is asked again later."""
    with contextlib.suppress(UnreachableError):
        return stored(instance.impatient(_PATIENCE))
    return None


@contextlib.contextmanager
def hinting(instance: Instance) -> Iterator[None]:
    """Run the block. If another run is at work, the hint is to repeat this one with the same id."""
    try:
        yield
    except BusyError as error:
        own = instance.host.run_id()
        raise BusyError(
            error.message, hint=f"repeat the command with `--once {own}`: it makes a backup only if run {own} made none"
        ) from error
