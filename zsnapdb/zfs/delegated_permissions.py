"""Reading, granting and revoking of delegated permissions that are set on a dataset itself (zfs-allow(8))."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

from zsnapdb.zfs.command import ZFS, run

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
    """One delegated permission. `scope`: set, create (for the creator of a dataset), local, descendants, or both.

    `who`: user, group, everyone, or "". `name`: the account, its number if unknown on this host, or the permission set.
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


def give(dataset: str, rights: Collection[Right]) -> None:
    """Grant these permissions on the dataset. Existing ones stay."""
    for words in commands(rights):
        run([ZFS, "allow", *words, dataset])


def take(dataset: str, rights: Collection[Right]) -> None:
    """Revoke these permissions on the dataset. Missing ones count as revoked."""
    for words in commands(rights):
        run([ZFS, "unallow", *words, dataset])


def commands(rights: Collection[Right]) -> list[list[str]]:
    """Return the arguments of `zfs allow`, without the dataset: permission sets first, because others refer to them."""

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
