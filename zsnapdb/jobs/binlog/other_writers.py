"""Finds histories that other writers archived after the server's own history, which `latest` would not reach."""

from __future__ import annotations

import contextlib
import math
import time
from typing import ClassVar

from zsnapdb.base.domain_types import server_name
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.settings import OTHER_WRITERS_PAUSE
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.jobs.record.host_backup_record import record_of
from zsnapdb.planning.binlog.failover_history import second_writer
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, HistoryEnd, Incarnation

_ENDS = 32
"""The number of histories, newest first, whose ends a new history records."""


class OtherWriters:
    """The histories of other writers. They are read again only if the list of histories changes.

    Only histories that this host trusts count. Requests for this list cost money, so it is read at most once in
    `pause` seconds.
    """

    pause: ClassVar[float] = OTHER_WRITERS_PAUSE

    def __init__(self, instance: Instance, archive: BinlogArchive, contents: Archive) -> None:
        self._instance, self._archive = instance, archive
        self._contents, _ = own_archived_binlogs.known_part(instance, archive.repository, contents)
        self._seen = {one.id for one in contents.incarnations}
        self._warned, self._next_look = "", -math.inf
        self.overtaking: str | None = None
        """The history of another writer that a new history has to follow; None if there is none."""

    def reason_to_begin(self, own: Incarnation, newest: ArchivedFile) -> str | None:
        """Return why the server, whose newest archived file is `newest`, must begin a new history now, or None.

        Warn about the other writer. After one such history, the next may begin only after a backup of this host. So two
        servers that archive at the same time do not begin histories in every round.
        """
        if time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + self.pause
        other = self._newest(own, newest)
        if other is None:
            return None
        name = server_name(other.server_uuid, other.server_id)
        reason = (
            f"a copy of server {name} archived {newest.name} in the same history {own.id}"
            if other.id == own.id
            else f"server {name} (server_id {other.server_id}) archived binlogs in history {other.id} after this one"
        )
        may_begin = own.overtakes is None or self._has_backup_since(own)
        self._warn(reason, own, may_begin=may_begin)
        if not may_begin:
            return None
        self.overtaking = other.id
        return reason

    def begin(self, own: Incarnation) -> None:
        """Note that the archiver has begun a history, which follows all others."""
        self._seen.add(own.id)
        self._contents, self.overtaking, self._warned = Archive((own,), ()), None, ""

    def _newest(self, own: Incarnation, newest: ArchivedFile) -> Incarnation | None:
        """Return the newest history of another writer that began or was continued after this server's, else None.

        If a copy of the server archives in this server's history, return this history.
        """
        repository = self._archive.repository
        listed = {one.key.incarnation for one in repository.list(layout.incarnations(self._archive.instance))}
        is_complete = not newest.is_rotated and repository.exists(self._archive.file_key(newest))
        if is_complete or listed - self._seen:
            self._contents, _ = own_archived_binlogs.known_part(self._instance, repository, self._archive.load())
            self._seen |= listed
        files = self._contents.files
        stored = [one for one in files if (one.incarnation, one.name, one.is_rotated) == (own.id, newest.name, True)]
        if is_complete and len(own_archived_binlogs.recorded(self._instance, repository, stored)) < len(stored):
            # A copy of the server, which at first had the same binlogs, archives in this server's history.
            return own
        known = {one.id: one for one in self._contents.incarnations}
        ids = list(known)
        later = [name for name in ids[ids.index(own.id) + 1 :] if self._contents.of(name)] if own.id in known else []
        grown = second_writer(files, newest, newest.reached, self._contents.state)
        if grown is not None and not later:
            return known.get(grown.other)
        return known[later[-1]] if later else None

    def _has_backup_since(self, own: Incarnation) -> bool:
        with contextlib.suppress(DamagedError):
            stored = record_of(self._instance, self._archive.repository).backups().stored
            return any((one.sequence or 0) > (own.sequence or 0) for one in stored)
        return False

    def _warn(self, reason: str, own: Incarnation, *, may_begin: bool) -> None:
        name = self._instance.name
        then = (
            "a new history begins"
            if may_begin
            else f"`latest` does not reach what is archived now in history {own.id}; run `zsnapdb backup {name}`"
        )
        text = f"{reason}: {then}; if both servers write, give each its own instance name or repository"
        if text != self._warned:
            self._warned = text
            self._instance.events.warn(text)


def ends_of(instance: Instance, archive: BinlogArchive, contents: Archive) -> tuple[HistoryEnd, ...]:
    """Return the ends of the newest trusted histories in the archive."""
    contents, _ = own_archived_binlogs.known_part(instance, archive.repository, contents)
    newest = {file.incarnation: file for file in contents.files}
    return tuple(
        HistoryEnd(incarnation=one.id, name=newest[one.id].name, transactions=newest[one.id].span.transactions)
        for one in contents.incarnations[-_ENDS:]
        if one.id in newest
    )
