"""Which server wrote which backups under one instance name. Pure.

Two hosts may be configured with the same instance name and repository, by mistake or for a while. Their backups count
apart: the backups of one server must not make those of another one expire, and none is the newest of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.chain import Lineage, Link
from zsnapdb.planning.order import PlacedLink
from zsnapdb.planning.repository.retention import time_of

SILENT = timedelta(days=14)
"""A server that wrote nothing for this long before another one began counts as replaced by that one."""


class WrittenLink(Link, Protocol):
    """A stored backup, as far as lineage goes, with the identity of its server."""

    @property
    def writer(self) -> str: ...


class PlacedBackup(WrittenLink, PlacedLink, Protocol):
    """A stored backup with the identity of its server, and its place among the others."""


@dataclass(frozen=True)
class Writer:
    """A server and the ids of its backups under one instance name, oldest first. `name` is that of its newest one.

    `first` and `last` are the places of the oldest and of the newest one among the backups of all servers.
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
    """Return the servers that wrote these backups, the one with the oldest backup first. `stored` is oldest first.

    Backups are of one server if they name the same one, or if one is an increment of the other: a server that got a new
    UUID on the same datasets goes on. A server whose last backup is older than the first one of the next server, and
    that has been silent for `SILENT`, was replaced by it: their backups count together.
    """
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
        if before and before.last < writer.first and now - time_of(before.newest) > SILENT:
            before = merged.pop()
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
    """Return the name of the server of each backup, by id."""
    return {backup_id: f"{writer.name} ({writer.oldest})" for writer in known for backup_id in writer.backups}


def others(known: Sequence[Writer], own: Sequence[str]) -> tuple[Writer, ...]:
    """Return the servers that write beside the one that wrote `own`: their newest backup is not older than all of it.

    `own` are the ids of backups of this host's server. Without any, every server is another one.
    """
    mine = [writer for writer in known if set(own) & set(writer.backups)]
    oldest = mine[0].first if mine else -1
    return tuple(writer for writer in known if writer not in mine and writer.last > oldest)
