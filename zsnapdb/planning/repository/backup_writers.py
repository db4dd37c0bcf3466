"""Finds the servers that wrote backups under one instance name. Pure.

Two hosts may use the same instance name and repository, by mistake or temporarily. The backups of the two hosts are
handled separately. The backups of one server must not make the backups of another server expire. They also never count
as the newest backups of the other server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.backup_chain import Lineage, Link
from zsnapdb.planning.creation_order import PlacedLink, contradicted
from zsnapdb.planning.repository.retention import time_of

SILENT = timedelta(days=14)
"""A server counts as replaced if its newest backup is older than this limit.

The replacement is the server that wrote later backups.
"""


class WrittenLink(Link, Protocol):
    """A stored backup with its lineage and the identity of its server."""

    @property
    def writer(self) -> str: ...


class PlacedBackup(WrittenLink, PlacedLink, Protocol):
    """A stored backup with the identity of its server and its place in the order of all backups."""


@dataclass(frozen=True)
class Writer:
    """A server and the ids of its backups under one instance name, oldest first.

    The server's name comes from its newest backup. Its oldest and newest backups are at the places `first` and `last`
    among the backups of all servers.
    """

    name: str
    backups: tuple[str, ...]
    first: int
    last: int

    @property
    def oldest(self) -> str:
        return self.backups[0]

    @property
    def newest(self) -> str:
        return self.backups[-1]


def writers(stored: Sequence[WrittenLink], now: datetime) -> tuple[Writer, ...]:
    """Return the servers that wrote the given backups; the server with the oldest backup is first.

    The argument `stored` contains the backups, oldest first.

    Two backups belong to one server if their manifests name the same server, or if one backup is an increment of the
    other. So a server with a new UUID on the same datasets stays the same server. Two servers are also treated as one
    if the second server replaced the first. This is assumed if the last backup of the first server is older than all
    backups of the second server and older than `SILENT`. If the time in that backup's id contradicts the order, a clock
    was wrong. Then the age of the second server's first backup is compared with `SILENT` instead.
    """
    wrong = contradicted([time_of(link.backup_id) for link in stored])
    doubtful = {link.backup_id for link, is_wrong in zip(stored, wrong, strict=True) if is_wrong}
    lineage = Lineage(stored)
    group: dict[str, set[str]] = {}
    first_of: dict[str, str] = {}
    for link in stored:
        group[link.backup_id] = {link.backup_id}
        _join(group, link.backup_id, first_of.setdefault(link.writer, link.backup_id))
    for link in stored:
        try:
            base = lineage.base(link)
        except DamagedError:
            continue
        if base is not None:
            _join(group, link.backup_id, base.backup_id)
    of_group: dict[int, list[tuple[int, WrittenLink]]] = {}
    for place, link in enumerate(stored):
        of_group.setdefault(id(group[link.backup_id]), []).append((place, link))
    merged: list[Writer] = []
    for members in of_group.values():
        (first, _), (last, newest) = members[0], members[-1]
        writer = Writer(newest.writer, tuple(link.backup_id for _, link in members), first, last)
        before = merged[-1] if merged else None
        if before and before.last < writer.first:
            silent_since = time_of(writer.oldest if before.newest in doubtful else before.newest)
            if now - silent_since > SILENT:
                merged.pop()
                writer = Writer(writer.name, (*before.backups, *writer.backups), before.first, writer.last)
        merged.append(writer)
    return tuple(merged)


def _join(group: dict[str, set[str]], one: str, other: str) -> None:
    if group[one] is not group[other]:
        small, large = sorted((group[one], group[other]), key=len)
        large |= small
        for member in small:
            group[member] = large


def by_backup(known: Sequence[Writer]) -> Mapping[str, str]:
    """Return a map from each backup id to the name of the backup's server."""
    return {backup_id: f"{writer.name} ({writer.oldest})" for writer in known for backup_id in writer.backups}


def others(known: Sequence[Writer], own: Sequence[str]) -> tuple[Writer, ...]:
    """Return the servers, except this host's server, with a backup newer than the oldest backup of this host's server.

    The argument `own` contains ids of backups of this host's server. If it is empty, the result contains every server.
    """
    mine = [writer for writer in known if set(own) & set(writer.backups)]
    oldest = mine[0].first if mine else -1
    return tuple(writer for writer in known if writer not in mine and writer.last > oldest)
