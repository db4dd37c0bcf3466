"""The settings that administrators made on their datasets. Backups record them.

Restores print them, but never set them. A manifest is untrusted. Each property and permission in it is validated, and
each argument is quoted for the shell. The user decides which settings to apply.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from pydantic import ValidationError

from zsnapdb.base.patterns import is_line
from zsnapdb.planning.dataset_property_classes import SPACE, PropertyClass, carried_names, property_class
from zsnapdb.repository.manifest import MOST_RIGHTS, RightPart, SitePart
from zsnapdb.zfs import explicit_settings
from zsnapdb.zfs.explicit_settings import Right

_MOST_BYTES = 64 << 10
"""The maximum total size in bytes of one dataset's recorded properties. Properties beyond this size are left out."""


def recorded_settings(places: Iterable[str]) -> dict[str, SitePart]:
    """Return the settings that administrators made on each dataset, for a manifest.

    Values with more than one line are left out.
    """
    names = sorted(set(places))
    own = explicit_settings.own_values(names)
    return {name: SitePart(properties=_bounded(own[name]), rights=_rights(name)) for name in names}


def _bounded(own: Mapping[str, str]) -> dict[str, str]:
    kept, size = {}, 0
    for name in sorted(own):
        size += len(name) + len(own[name].encode("utf-8", "replace"))
        if is_line(own[name]) and size <= _MOST_BYTES:
            kept[name] = own[name]
    return kept


def _rights(dataset: str) -> tuple[RightPart, ...]:
    parts = []
    for one in sorted(explicit_settings.rights_on(dataset))[:MOST_RIGHTS]:
        # Leave out accounts with invalid names.
        with contextlib.suppress(ValidationError):
            parts.append(RightPart.model_validate(asdict(one)))
    return tuple(parts)


def site_commands(dataset: str, site: SitePart | None) -> tuple[str, ...]:
    """Return shell commands that set the recorded settings of the administrators on a dataset.

    `DATA` properties are left out, because a restore sets them.
    """
    if site is None:
        return ()
    given = [name for name in carried_names(site.properties) if property_class(name) is not PropertyClass.DATA]
    groups = ([name for name in given if name not in SPACE], [name for name in SPACE if name in given])
    sets = [
        ["zfs", "set", *(f"{name}={site.properties[name]}" for name in names), dataset] for names in groups if names
    ]
    wanted = [Right(one.scope, one.who, one.name, one.permission) for one in site.rights]
    allows = [["zfs", "allow", *words, dataset] for words in explicit_settings.permission_commands(wanted)]
    return tuple(shlex.join(words) for words in (*sets, *allows))


def notes_on_site(commands: Iterable[str]) -> tuple[str, ...]:
    """Return notes for a plan or a result, with the commands that the user may run after the restore."""
    return tuple(
        f"set by the site where it was backed up; read it, and run it after the restore: {one}" for one in commands
    )
