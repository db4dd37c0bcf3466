"""Reading of local and received properties, safe for values with arbitrary bytes.

The bytes of a user property may imitate another row of `zfs get`. So names and sources are read without values. Each
value that may be arbitrary text is read by its own command, whose whole output is that value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from zsnapdb.base.errors import CommandError
from zsnapdb.planning.dataset_properties import TEXTS, carried_names, is_native_name, is_user_name
from zsnapdb.zfs.command import ZFS, run, table
from zsnapdb.zfs.datasets import Property, properties_of

MOST_USER_PROPERTIES = 200
"""Limit of user properties per dataset; the rest is left out, because nobody sets so many by hand."""


def known_names(dataset: str) -> frozenset[str]:
    """Return the native properties that the installed OpenZFS supports for this dataset."""
    listed = table([ZFS, "get", "-H", "-o", "property", "all", dataset], 1)
    return frozenset(name for (name,) in listed if is_native_name(name))


def read_known(names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Property]]:
    """Return the native properties `keys`, by dataset. Those unknown to the installed OpenZFS are left out."""
    try:
        return properties_of(names, keys)
    except CommandError as error:
        if "invalid property" not in error.message:
            raise
    known = frozenset().union(*(known_names(name) for name in names))
    return properties_of(names, [key for key in keys if key in known])


def own_names(names: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of the properties that are local or received, by dataset. NotFound if one does not exist."""
    argv = [ZFS, "get", "-H", "-o", "name,property", "-s", "local,received", "all", *names]
    own: dict[str, set[str]] = {name: set() for name in names}
    for name, key in table(argv, 2) if names else ():
        if is_native_name(key) or is_user_name(key):
            own[name].add(key)
    return own


def own_values(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the local or received properties of each dataset that a replacement of the dataset must get too.

    Values are exact; bytes that are not UTF-8 stay distinct. NotFound if a dataset does not exist.
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
    """Return the value of one property of one dataset. It may have any bytes."""
    output = run([ZFS, "get", "-H", "-p", "-o", "value", key, dataset], errors="surrogateescape")
    return output.removesuffix("\n")
