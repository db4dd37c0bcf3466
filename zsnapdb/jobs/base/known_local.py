"""Which snapshots of this host were read as those of `zsnapdb snapshot`, so that they need not be read again.

A host may have thousands of local sets, and most questions are not about them. A backup, or a run of `zsnapdb
snapshot`, notes those that it has read: of the instance, LOCAL, without a hold. `forget` comes before such a set is
held or becomes something else. Both are done by runs that have the instance for themselves (`exclusion.for_instance`).
The note only leaves snapshots out of what is read. It says of none what it is, and it is lost with a reboot, or when
the filesystem is mounted again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from zsnapdb.base import whole_file
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.base.set_properties import LOCAL, STATE_PROPERTY
from zsnapdb.zfs.snapshot_names import SnapshotNames
from zsnapdb.zfs.snapshots import OwnedSnapshot

HOLDS = "userrefs"
"""zfsprops(7): the number of holds. Who notes has read it."""


def _folder(instance: Instance) -> Path:
    return instance.host.run / "read" / instance.name


def _file(instance: Instance, place: str) -> Path:
    return _folder(instance) / quote(place, safe="")


def known(instance: Instance, place: str, names: SnapshotNames) -> frozenset[str]:
    """Return those of the snapshots, by short name, that were read as local ones and are still the same."""
    try:
        mount, *lines = _file(instance, place).read_text().splitlines()
    except (OSError, ValueError):
        return frozenset()
    if mount != names.mount:
        return frozenset()
    before = frozenset(lines)
    return frozenset(name for name, number in names.numbers.items() if _line(name, number) in before)


def note(instance: Instance, names: Mapping[str, SnapshotNames], seen: Iterable[OwnedSnapshot]) -> None:
    """Note the local ones among own snapshots, read with HOLDS, beside those that are noted and still there.

    The caller is the only one at work on the instance, and listed `names` before it read. A note that cannot be written
    is none.
    """
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
            with contextlib.suppress(OSError, PreflightError):
                make_private(_folder(instance))
                whole_file.replace_disposable(_file(instance, place), "\n".join(lines).encode())


def forget(instance: Instance, places: Collection[str]) -> None:
    """Note no snapshot of these datasets any more. PreflightError if a note cannot be removed."""
    for place in places:
        file = _file(instance, place)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise PreflightError(f"removing {file}: {error.strerror}", hint="remove it, and run again") from error


def _line(name: str, number: int) -> str:
    return f"{number:x} {name}"
