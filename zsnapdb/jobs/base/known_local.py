"""Which snapshots of this host were read as those of `zsnapdb snapshot`, so that they need not be read again.

A host may have thousands of local sets, and most questions are not about them. A backup, or a run of `zsnapdb
snapshot`, notes those that it has read: of the instance, LOCAL, without a hold. Such a set is held, or becomes
something else, within `changing`; who read before its end notes nothing any more. The note only leaves snapshots out of
what is read. It says of none what it is, and it is lost with a reboot, or when the filesystem is mounted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from zsnapdb.base import whole_file
from zsnapdb.base.errors import BusyError, PreflightError
from zsnapdb.jobs.base.exclusion import exclusive
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import LOCAL, STATE_PROPERTY
from zsnapdb.zfs.snapshot_files import SnapshotNames
from zsnapdb.zfs.snapshots import OwnedSnapshot

_GENERATION = ".generation"
_CHANGING = "changing"
"""The generation while a set is changed, and after a run that was killed meanwhile."""
_PATIENCE = 10.0

HOLDS = "userrefs"
"""zfsprops(7): the number of holds. Who notes has read it."""


def _folder(instance: Instance) -> Path:
    return instance.host.run / "read" / instance.name


def _file(instance: Instance, place: str) -> Path:
    # The name of a dataset may be as long as that of a file, without what would stand for a slash.
    return _folder(instance) / hashlib.sha256(place.encode()).hexdigest()


def known(instance: Instance, place: str, names: SnapshotNames) -> frozenset[str]:
    """Return those of the snapshots, by short name, that were read as local ones and are still the same.

    A note that another account wrote, or a link in its place, says nothing.
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
    """Return what `changing` changes. Who notes something asked for it before reading."""
    try:
        return (_folder(instance) / _GENERATION).read_text()
    except (OSError, ValueError):
        return ""


def note(
    instance: Instance, names: Mapping[str, SnapshotNames], seen: Iterable[OwnedSnapshot], generation_before: str
) -> None:
    """Note the local ones among own snapshots, read with HOLDS, beside those that are noted and still there.

    Nothing is noted if a run changed a set since `generation_before`, or is about to. `names` were listed before the
    snapshots were read. A note that cannot be written is none.
    """
    with contextlib.suppress(BusyError, OSError, PreflightError), _alone(instance, 0.0):
        current = generation(instance)
        if current == _CHANGING:
            # What was read may be older than the change of a run that was killed. What is read from now on is not.
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
        before = known(instance, place, listed)
        noted = before | (fresh[place] & listed.numbers.keys())
        if noted != before:
            lines = [listed.mount, *(_line(name, listed.numbers[name]) for name in sorted(noted))]
            whole_file.replace_disposable(_file(instance, place), "\n".join(lines).encode())


@contextlib.contextmanager
def changing(instance: Instance, places: Collection[str]) -> Iterator[None]:
    """Change local sets in the block. No snapshot of these datasets is noted then, or by who read before its end.

    PreflightError if a note cannot be removed.
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
    whole_file.replace_disposable(_folder(instance) / _GENERATION, generation.encode())


def _alone(instance: Instance, patience: float) -> contextlib.AbstractContextManager[None]:
    return exclusive("notes", doing="noting local sets", patience=patience, folder=_folder(instance))


def _line(name: str, number: int) -> str:
    return f"{number:x} {name}"
