"""The settings of the site on its own datasets: recorded by backups, printed for a person, never set by a restore.

A manifest is written by others. Each property and each right of it has the form of its kind, and a shell reads each
word as it is; a person decides which of them a host gets.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from pydantic import ValidationError

from zsnapdb.base.patterns import is_line
from zsnapdb.planning.dataset_properties import (
    SPACE,
    PropertyClass,
    carried_names,
    property_class,
)
from zsnapdb.repository.manifest import MOST_RIGHTS, RightPart, SitePart
from zsnapdb.zfs import own_properties, rights
from zsnapdb.zfs.rights import Right

_MOST_BYTES = 64 << 10
"""The properties of one dataset that are recorded; more are left out."""


def recorded_settings(places: Iterable[str]) -> dict[str, SitePart]:
    """Return what a manifest records of the site's settings on each dataset. A value of several lines is left out."""
    names = sorted(set(places))
    own = own_properties.own_values(names)
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
    for one in sorted(rights.rights_on(dataset))[:MOST_RIGHTS]:
        # An account with a name of another form is left out.
        with contextlib.suppress(ValidationError):
            parts.append(RightPart.model_validate(asdict(one)))
    return tuple(parts)


def site_commands(dataset: str, site: SitePart | None) -> tuple[str, ...]:
    """Return the commands that give a dataset what the site had set where it was backed up, for a shell.

    Values of data are left out: a restore gives them.
    """
    if site is None:
        return ()
    given = [name for name in carried_names(site.properties) if property_class(name) is not PropertyClass.DATA]
    groups = ([name for name in given if name not in SPACE], [name for name in SPACE if name in given])
    sets = [
        ["zfs", "set", *(f"{name}={site.properties[name]}" for name in names), dataset] for names in groups if names
    ]
    wanted = [Right(one.scope, one.who, one.name, one.permission) for one in site.rights]
    allows = [["zfs", "allow", *words, dataset] for words in rights.commands(wanted)]
    return tuple(shlex.join(words) for words in (*sets, *allows))


def notes_on_site(commands: Iterable[str]) -> tuple[str, ...]:
    """Return for a plan or a result the commands that a person may run after the restore."""
    return tuple(
        f"set by the site where it was backed up; read it, and run it after the restore: {one}" for one in commands
    )
