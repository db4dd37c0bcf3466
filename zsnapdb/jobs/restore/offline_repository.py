"""Makes restores possible while the store is unreachable, from sets on this host and the server's own binlogs.

An object without backups, the stand-in, replaces the repository. Its binlog archive describes the server's own binlogs.
The bytes of these binlogs are copied and compared with the descriptions (`jobs/host/binlog_spans.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from zsnapdb.base.errors import DamagedError, NotFound, UnreachableError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.backup.local_snapshot import IN_NO_REPOSITORY
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs, SpanBuilder, whole_span
from zsnapdb.mysql.binlog.binlog_files import open_binlog
from zsnapdb.mysql.binlog.binlog_keys import BinlogKeys
from zsnapdb.mysql.binlog.events import fingerprint, read_plain
from zsnapdb.mysql.binlog.transactions import read_head
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.point_forms import Target
from zsnapdb.planning.restore.route_choice import SetOnHost, first_binlog
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, HeadPart, Incarnation, is_archivable, number_of
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source
from zsnapdb.repository.manifest_source import ServerPart
from zsnapdb.repository.repository import Repository
from zsnapdb.store.local import LocalStore
from zsnapdb.stream.chunks import Chunk, plain_hash, stream_hash

_HISTORY = "19710102T000000Z-0000"
"""The id of the history that consists of the binlogs on this host."""
_CHUNK = 64 << 20
_PIECE = 1 << 20


def open_for_restore(instance: Instance, origin: RestoreOrigin) -> Repository:
    """Open the repository. If the store is unreachable and a set on this host can be restored, return the stand-in.

    Raises:
        UnreachableError: the store is unreachable, and either no set on this host can be restored, or the user
            requested the repository.
    """
    try:
        return instance.open_repository()
    except UnreachableError as error:
        if origin is RestoreOrigin.REPOSITORY or not local_snapshot.load(instance):
            raise
        instance.events.warn(
            f"the store is unreachable ({error.message}): only data on this host is used, and a newer state may be"
            f" stored"
        )
        return _stand_in(instance)


def reopen(instance: Instance, planned: RestorePlan) -> Repository:
    """Open the repository that was used for the plan."""
    return _stand_in(instance) if planned.repository == IN_NO_REPOSITORY else instance.open_repository()


def is_stand_in(repository: Repository) -> bool:
    """Return whether the repository is the stand-in for an unreachable store."""
    return repository.id == IN_NO_REPOSITORY


def archive_of(
    instance: Instance, repository: Repository, target: Target | None = None, only: Mapping[str, int] | None = None
) -> BinlogArchive:
    """Return the binlog archive of the instance.

    For a stand-in, return the server's binlogs on this host as an archive. A stand-in describes the binlogs that a
    restore to the target needs. If `only` is given, the stand-in describes only the binlogs in it, each up to the given
    end in bytes. If a binlog has no given end, its description ends after its last complete transaction.
    """
    if not is_stand_in(repository):
        return instance.archive(repository)
    sets = tuple(manifest for manifest in local_snapshot.load(instance) if is_of_server(manifest))
    return _HostArchive(repository, instance.name, sets, target, only)


def known_archive_of(instance: Instance, repository: Repository, target: Target | None = None) -> Archive:
    """Return the part of the result of `archive_of` that this host knows.

    A replay executes the statements of the binlogs, so a foreign binlog is used only after its adoption. A host that
    cannot distinguish its own binlogs gets the whole archive.
    """
    # Import late, because a plan without an archive does not need this module.
    from zsnapdb.jobs.record import own_archived_binlogs

    return own_archived_binlogs.known_part(instance, repository, archive_of(instance, repository, target).load())[0]


def offline_repository(instance: Instance) -> Repository | None:
    """Return the stand-in without reading the store; None if no set on this host can be restored."""
    return _stand_in(instance) if local_snapshot.load(instance) else None


T = TypeVar("T")


def stored_or_here(instance: Instance, make: Callable[[Repository], T], *, is_in_history: bool = False) -> T:
    """Return the plan that `make` creates from the repository.

    If the repository does not contain the point, return the plan that `make` creates from this host alone. The latest
    transactions may be only in the server's own binlogs, and not yet in the archive. If `is_in_history` is set, the
    point is in a named history, which only the archive knows. Raises the errors of the plan with the repository.
    """
    repository = open_for_restore(instance, RestoreOrigin.AUTO)
    try:
        return make(repository)
    except NotFound:
        here = None if is_in_history or is_stand_in(repository) else offline_repository(instance)
        if here is None:
            raise
        try:
            planned = make(here)
        except ZsnapdbError:
            planned = None
        if planned is None:
            raise
    instance.events.warn("the archive does not reach the point yet: the server's own binlogs on this host are used")
    return planned


def _stand_in(instance: Instance) -> Repository:
    empty = instance.host.local_sets / ".empty"
    make_private(empty)
    return Repository(LocalStore(empty), "", IN_NO_REPOSITORY)


@dataclass(frozen=True)
class _HostArchive(BinlogArchive):
    """The server's binlogs on this host, described like an archive. `sets` contains this host's sets, oldest first."""

    sets: tuple[Manifest, ...]
    target: Target | None = None
    only: Mapping[str, int] | None = None

    def load(self) -> Archive:
        """Return the server's binlogs, beginning with the oldest binlog that a local set needs.

        If a binlog cannot be read, the result ends before this binlog, and contains the error.
        """
        if not self.sets:
            return Archive((), ())
        server = server_source(self.sets[-1]).server
        history = Incarnation(
            id=_HISTORY,
            repository_id=IN_NO_REPOSITORY,
            instance=self.instance,
            flavour=server.flavour,
            server_uuid=server.server_uuid,
            server_id=server.server_id,
            began=datetime(1971, 1, 2, tzinfo=UTC),
            reason="the binlogs of the server on this host",
        )
        first = self._first_number()
        files: list[ArchivedFile] = []
        local = LocalBinlogs.of(server.variables, server.key_files)
        for name, path in local.paths.items():
            if not is_archivable(name) or number_of(name) < first or (self.only is not None and name not in self.only):
                continue
            try:
                end = self.only[name] if self.only is not None else None
                file = _described(path, local.keys, self.instance, server, end)
            except (ZsnapdbError, OSError) as error:
                return Archive((history,), tuple(files), (DamagedError(f"binlog {name} cannot be read: {error}"),))
            if file is not None:
                files.append(file)
        return Archive((history,), tuple(files))

    def _first_number(self) -> int:
        """Return the number of the oldest binlog that a local set needs; 0 if it is unknown."""
        known = []
        for manifest in self.sets:
            position = server_source(manifest).position
            name = position.binlog_file
            number = number_of(name) if name is not None and is_archivable(name) else None
            known.append(SetOnHost(manifest.created, number, position.gtids))
        return first_binlog(known, self.target, server_source(self.sets[-1]).server.flavour)

    def fetch(self, file: ArchivedFile, target: Path) -> None:
        """Raise UnreachableError, because nothing can be downloaded while the store is unreachable."""
        raise UnreachableError(
            f"binlog {file.name} on this host was changed or removed, and the store is unreachable: {target} was not"
            f" written",
            hint="run the restore again, or wait until the store is reachable",
        )


def _described(path: Path, keys: BinlogKeys, instance: str, server: ServerPart, end: int | None) -> ArchivedFile | None:
    """Return the description of a binlog up to `end`; None if the binlog is shorter, or its head is incomplete.

    If `end` is None, the description ends with the last complete transaction. Otherwise the transactions are not read.
    """
    with open_binlog(path, keys) as file:
        head = read_head(file, path.name)
        if head is None or head.end is None or file.seek(0, 2) < (end or 0):
            return None
        span = whole_span(file, path.name) if end is None else SpanBuilder(0, end).span()
        chunks = []
        for start in range(0, span.end, _CHUNK):
            end, proof = min(start + _CHUNK, span.end), plain_hash()
            for at in range(start, end, _PIECE):
                proof.update(read_plain(file, at, min(at + _PIECE, end)))
            chunks.append(Chunk(end - start, proof.hexdigest(), end - start, "0" * 64, None))
        return ArchivedFile(
            repository_id=IN_NO_REPOSITORY,
            instance=instance,
            incarnation=_HISTORY,
            name=path.name,
            flavour=server.flavour,
            is_rotated=True,
            head=HeadPart(
                server_uuid=server.server_uuid,
                server_id=head.server_id,
                version=head.version,
                created=head.created,
                previous_gtids=None if head.previous is None else str(head.previous),
                end=head.end,
                fingerprint=fingerprint(file, head.end),
            ),
            span=span,
            size=span.end,
            sha256=stream_hash(tuple(chunks)),
            chunks=tuple(chunks),
        )
