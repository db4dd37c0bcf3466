"""Reads the properties that were set on a dataset itself, or received with it; whatever text others put into them.

A user property may have any bytes, also those of another row of `zfs get`. So names and sources are read without
values, and each value that may be any text is read alone: the whole output of the command is that value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from zsnapdb.base.errors import CommandError
from zsnapdb.planning.dataset_properties import TEXTS, carried_names, is_native_name, is_user_name
from zsnapdb.zfs.command import ZFS, run, table
from zsnapdb.zfs.datasets import Property, properties_of

MOST_USER_PROPERTIES = 200
"""More user properties than this on one dataset are left out: nobody sets so many by hand."""


def known_names(dataset: str) -> frozenset[str]:
    """Return the native properties that the OpenZFS of this host has for such a dataset."""
    listed = table([ZFS, "get", "-H", "-o", "property", "all", dataset], 1)
    return frozenset(name for (name,) in listed if is_native_name(name))


def read_known(names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Property]]:
    """Return the native properties `keys` of the datasets, by dataset, as far as the OpenZFS of this host has them."""
    try:
        return properties_of(names, keys)
    except CommandError as error:
        if "invalid property" not in error.message:
            raise
    known = frozenset().union(*(known_names(name) for name in names))
    return properties_of(names, [key for key in keys if key in known])


def own_names(names: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of the properties that are local or received, by dataset. NotThere if one does not exist."""
    argv = [ZFS, "get", "-H", "-o", "name,property", "-s", "local,received", "all", *names]
    own: dict[str, set[str]] = {name: set() for name in names}
    for name, key in table(argv, 2) if names else ():
        if is_native_name(key) or is_user_name(key):
            own[name].add(key)
    return own


def own_values(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return what the site has set on each dataset: the local or received properties that what replaces it gets.

    Values are exact; bytes that are no UTF-8 stay distinct. NotThere if a dataset does not exist.
    """
    own = {name: set(carried_names(keys)) for name, keys in own_names(names).items()}
    simple = sorted({key for keys in own.values() for key in keys if is_native_name(key) and key not in TEXTS})
    values: dict[str, dict[str, str]] = defaultdict(dict)
    if simple:
        for name, key, value in table(
            [ZFS, "get", "-H", "-p", "-o", "name,property,value", ",".join(simple), *names], 3
        ):
            if key in own[name]:
                values[name][key] = value
    for name in names:
        texts = [key for key in sorted(own[name]) if key not in simple]
        users = [key for key in texts if is_user_name(key)][:MOST_USER_PROPERTIES]
        for key in (*(key for key in texts if key in TEXTS), *users):
            values[name][key] = text_of(name, key)
    return {name: values[name] for name in names}


def text_of(dataset: str, key: str) -> str:
    """Return the value of one property of one dataset, whatever its bytes are."""
    output = run([ZFS, "get", "-H", "-p", "-o", "value", key, dataset], errors="surrogateescape")
    return output.removesuffix("\n")
