"""Settings of a dataset itself: local and received properties, and delegated permissions (zfs-allow(8))."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from zsnapdb.base.errors import CommandError
from zsnapdb.planning.dataset_property_classes import TEXTS, carried_names, is_native_name, is_user_name
from zsnapdb.zfs.command import ZFS, run, table
from zsnapdb.zfs.datasets import Property, properties_of

MOST_USER_PROPERTIES = 200
"""Maximum number of user properties per dataset that are read. Further user properties are ignored, because nobody sets
so many by hand.
"""


def known_names(dataset: str) -> frozenset[str]:
    """Return the native properties that the installed OpenZFS supports for this dataset."""
    listed = table([ZFS, "get", "-H", "-o", "property", "all", dataset], 1)
    return frozenset(name for (name,) in listed if is_native_name(name))


def read_known(names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Property]]:
    """Return the native properties `keys`, keyed by dataset.

    Properties that the installed OpenZFS does not support are left out.
    """
    try:
        return properties_of(names, keys)
    except CommandError as error:
        if "invalid property" not in error.message:
            raise
    known = frozenset().union(*(known_names(name) for name in names))
    return properties_of(names, [key for key in keys if key in known])


def own_names(names: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of the properties that are local or received, keyed by dataset.

    Raises NotFound if one of the named objects does not exist.
    """
    argv = [ZFS, "get", "-H", "-o", "name,property", "-s", "local,received", "all", *names]
    own: dict[str, set[str]] = {name: set() for name in names}
    for name, key in table(argv, 2) if names else ():
        if is_native_name(key) or is_user_name(key):
            own[name].add(key)
    return own


def own_values(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return each dataset's local or received properties that must also be set on a replacement of the dataset.

    Values are exact, even if they contain bytes that are not UTF-8. Raises NotFound if a dataset does not exist.
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
    """Return the value of one property of one dataset. The value may contain any bytes."""
    output = run([ZFS, "get", "-H", "-p", "-o", "value", key, dataset], errors="surrogateescape")
    return output.removesuffix("\n")


_SCOPES = {
    "Permission sets:": "set",
    "Create time permissions:": "create",
    "Local permissions:": "local",
    "Descendent permissions:": "descendants",
    "Local+Descendent permissions:": "both",
}
_HEAD = re.compile(r"---- Permissions on (\S.*?) -*")
_UNKNOWN = re.compile(r"\(unknown: (-?[0-9]{1,10})\)")
_PERMISSION = re.compile(r"@?[A-Za-z0-9_.:@+-]{1,255}")
_SET = re.compile(r"@[A-Za-z0-9_.:@+ -]{1,63}")
_OPTIONS = {"set": ["-s"], "create": ["-c"], "local": ["-l"], "descendants": ["-d"], "both": []}
_WHO = {"user": ["-u"], "group": ["-g"], "everyone": ["-e"]}


@dataclass(frozen=True, order=True)
class Right:
    """One delegated permission. `scope` is set, create (for the creator of a dataset), local, descendants, or both.

    `who` is user, group, everyone, or "". `name` is the account (its number if this host does not know it), or the
    permission set.
    """

    scope: str
    who: str
    name: str
    permission: str


def rights_on(dataset: str) -> frozenset[Right]:
    """Return the permissions that were granted on exactly this dataset, not on its parents."""
    return frozenset(parse_rights(run([ZFS, "allow", dataset]), dataset))


def parse_rights(output: str, dataset: str) -> Iterator[Right]:
    """Yield the permissions on exactly this dataset from the output of `zfs allow`."""
    is_here, scope = False, ""
    for line in output.split("\n"):
        if head := _HEAD.fullmatch(line):
            is_here, scope = head[1] == dataset, ""
        elif line in _SCOPES:
            scope = _SCOPES[line]
        elif is_here and scope and line.startswith("\t"):
            yield from _of_line(scope, line[1:])


def _of_line(scope: str, line: str) -> Iterator[Right]:
    before, _, listed = line.rpartition(" ")
    who, _, name = before.partition(" ") if scope not in ("set", "create") else ("", "", before)
    if who not in ("", *_WHO) or (scope == "set" and _SET.fullmatch(name) is None):
        return
    if unknown := _UNKNOWN.fullmatch(name):
        name = str(int(unknown[1]) % 2**32)
    for permission in listed.split(","):
        if _PERMISSION.fullmatch(permission):
            yield Right(scope, who, name, permission)


def give_rights(dataset: str, rights: Collection[Right]) -> None:
    """Grant the given permissions on the dataset. Existing permissions are kept."""
    for words in permission_commands(rights):
        run([ZFS, "allow", *words, dataset])


def take_rights(dataset: str, rights: Collection[Right]) -> None:
    """Revoke the given permissions on the dataset. If a permission is missing, no error is raised."""
    for words in permission_commands(rights):
        run([ZFS, "unallow", *words, dataset])


def permission_commands(rights: Collection[Right]) -> list[list[str]]:
    """Return the arguments of `zfs allow`, without the dataset.

    Permission sets come first, because other permissions refer to them.
    """

    def key(right: Right) -> tuple[bool, str, str, str]:
        return right.scope != "set", right.scope, right.who, right.name

    return [
        [*_OPTIONS[scope], *_of_whom(who, name), ",".join(sorted(one.permission for one in group))]
        for (_, scope, who, name), group in groupby(sorted(rights, key=key), key)
    ]


def _of_whom(who: str, name: str) -> list[str]:
    if who == "everyone":
        return ["-e"]
    return [*_WHO.get(who, []), *([name] if name else [])]
