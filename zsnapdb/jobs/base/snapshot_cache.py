"""Cache of snapshots that were read as those of `zsnapdb snapshot`, so that they need not be read again.

A host may have thousands of local snapshot sets, which most commands do not need. A backup or a run of `zsnapdb
snapshot` records the snapshots that it has read as local: of this instance, in state LOCAL, without a hold.

A hold or a new state is set only inside `changing`. A process that read before the end of that block cannot record its
results any more. The cache only excludes snapshots from reading, and proves nothing about them. It is lost with a
reboot, or when the filesystem is mounted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from zsnapdb.base import atomic_file
from zsnapdb.base.errors import BusyError, PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.base.set_properties import LOCAL, STATE_PROPERTY
from zsnapdb.zfs.snapshot_files import SnapshotNames
from zsnapdb.zfs.snapshots import OwnedSnapshot

_GENERATION = ".generation"
_CHANGING = "changing"
"""The generation while a set is changed, and after a run that was killed during a change."""
_PATIENCE = 10.0

HOLDS = "userrefs"
"""The number of holds (zfsprops(7)). It must be read before a snapshot is recorded."""


def _folder(instance: Instance) -> Path:
    return instance.host.run / "read" / instance.name


def _file(instance: Instance, place: str) -> Path:
    # The name of a dataset may be as long as a file name may be, without escapes for slashes.
    return _folder(instance) / hashlib.sha256(place.encode()).hexdigest()


def recorded_snapshots(instance: Instance, place: str, names: SnapshotNames) -> frozenset[str]:
    """Return the snapshots, by short name, that were recorded as local and are still the same.

    A file of another account, or a link in its place, is ignored.
    """
    try:
        opened = os.open(_file(instance, place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, encoding="utf-8") as file:
            if os.fstat(opened).st_uid != os.geteuid():
                return frozenset()
            mount, *lines = file.read().splitlines()
    except (OSError, ValueError):
        return frozenset()
    if mount != names.mount:
        return frozenset()
    before = frozenset(lines)
    return frozenset(name for name, number in names.numbers.items() if _line(name, number) in before)


def generation(instance: Instance) -> str:
    """Return the present id of the cache, which `changing` replaces. Read it before the snapshots, for `note`."""
    try:
        return (_folder(instance) / _GENERATION).read_text()
    except (OSError, ValueError):
        return ""


def note(
    instance: Instance, names: Mapping[str, SnapshotNames], seen: Iterable[OwnedSnapshot], generation_before: str
) -> None:
    """Record the local snapshots among `seen`, in addition to recorded ones that still exist.

    Nothing is recorded if a run changed a set since `generation_before`, or is changing one. `names` must be listed
    before the snapshots are read, and `seen` must be read with HOLDS. Write errors are ignored.
    """
    with contextlib.suppress(BusyError, OSError, PreflightError), _alone(instance, 0.0):
        current = generation(instance)
        if current == _CHANGING:
            # The results may be older than the change of a killed run. With a new generation, later results are not.
            _begin(instance, secrets.token_hex(16))
        elif current == generation_before:
            _note(instance, names, seen)


def _note(instance: Instance, names: Mapping[str, SnapshotNames], seen: Iterable[OwnedSnapshot]) -> None:
    fresh: dict[str, set[str]] = {place: set() for place in names}
    for one in seen:
        place, is_local = one.snapshot.dataset, one.properties[STATE_PROPERTY] == LOCAL
        if is_local and one.properties[HOLDS] == "0" and place in fresh:
            fresh[place].add(one.snapshot.name)
    for place, listed in names.items():
        before = recorded_snapshots(instance, place, listed)
        noted = before | (fresh[place] & listed.numbers.keys())
        if noted != before:
            lines = [listed.mount, *(_line(name, listed.numbers[name]) for name in sorted(noted))]
            atomic_file.replace_disposable(_file(instance, place), "\n".join(lines).encode())


@contextlib.contextmanager
def changing(instance: Instance, places: Collection[str]) -> Iterator[None]:
    """Change local sets in the block. Snapshots of these datasets are not recorded until its end.

    Results that were read before its end are not recorded either. Raises PreflightError if a record cannot be removed.
    """
    with _alone(instance, _PATIENCE):
        try:
            _begin(instance, _CHANGING)
            for place in places:
                _file(instance, place).unlink(missing_ok=True)
        except OSError as error:
            raise PreflightError(
                f"removing the notes in {_folder(instance)}: {error.strerror}", hint="remove that folder, and run again"
            ) from error
        yield
        with contextlib.suppress(OSError):
            _begin(instance, secrets.token_hex(16))


def _begin(instance: Instance, generation: str) -> None:
    atomic_file.replace_disposable(_folder(instance) / _GENERATION, generation.encode())


def _alone(instance: Instance, patience: float) -> contextlib.AbstractContextManager[None]:
    return exclusive("notes", doing="noting local sets", patience=patience, folder=_folder(instance))


def _line(name: str, number: int) -> str:
    return f"{number:x} {name}"
