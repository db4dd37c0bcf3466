"""Finds the states of an instance that can be restored from backups and archived binlogs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from zsnapdb.base.domain_types import parse_gtids, server_name
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import points_of
from zsnapdb.jobs.record import host_backup_record, own_archived_binlogs
from zsnapdb.planning.binlog.archive_times import complete_until, newest_not_ahead
from zsnapdb.planning.binlog.failover_history import RepeatedGtids, repeated_gtids, reused_gtids
from zsnapdb.planning.binlog.recoverable_ranges import Window, window
from zsnapdb.planning.binlog.route import NEWEST
from zsnapdb.planning.damage_register import DamageRegister
from zsnapdb.planning.repository.host_backup_record import ArchivedPosition, StoredFinding
from zsnapdb.planning.repository.known_backups import Provenance
from zsnapdb.planning.repository.verification import consequences
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.drills import Evidence
from zsnapdb.repository.manifest_source import ServerPart, ServerSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage


@dataclass(frozen=True)
class Stored:
    """The objects of an instance that were read from a repository.

    `unreadable` contains an error for each backup whose manifest cannot be read. `missing` contains the findings of the
    comparison with this host's record. `unchosen` contains foreign backups and backups with a future time. zsnapdb uses
    a backup in `unchosen` only if a user names it. `provenance` contains the backups that this host knows.
    """

    repository: Repository
    backups: tuple[Summary, ...]
    unreadable: Mapping[str, DamagedError]
    archive: Archive
    damage: DamageRegister
    missing: tuple[StoredFinding, ...]
    unchosen: Collection[str]
    provenance: Provenance = field(default_factory=Provenance)
    own_backups: Collection[str] = ()
    """The backups in the repository that this host stored or adopted, by its record."""
    own_histories: Collection[str] = ()
    """The binlog histories in the archive that this host began or adopted, by its record."""
    archived: ArchivedPosition | None = None
    """The newest position that this host archived. A copy of the server may have continued its history."""
    recorded: Collection[tuple[str, str]] = ()
    """The rotated binlogs after `archived` that this host archived, as incarnations and names.

    The archiver records the position at the end of a round.
    """
    no_copy: Callable[[ServerPart], str] = lambda _: ""
    """Function that returns the reason why this host cannot start a copy of a server; "" if it can."""

    @functools.cached_property
    def own_part(self) -> Stored:
        """The content with only the backups and binlogs in this host's record. If the record lists none, all count.

        Another server that writes under the same name must not hide that this host's server is not protected.
        """
        ids = {backup.backup_id for backup in self.backups}
        histories = {file.incarnation for file in self.archive.files}
        foreign = ids.difference(self.own_backups or ids)
        own = histories.intersection(self.own_histories or histories)
        parts = (self._own_part_of(file) for file in self.archive.files if file.incarnation in own)
        files = tuple(part for part in parts if part is not None)
        if not foreign and files == self.archive.files:
            return self
        archive = replace(
            self.archive,
            incarnations=tuple(one for one in self.archive.incarnations if one.id in own),
            files=files,
        )
        return replace(
            self, archive=archive, unchosen={*self.unchosen, *foreign}, own_backups=(), own_histories=(), archived=None
        )

    def _own_part_of(self, file: ArchivedFile) -> ArchivedFile | None:
        """Return the binlog, or None if it is after the newest position that this host archived in its history.

        If the binlog goes on after this position, it is returned as if it ended there.
        """
        if self._is_own(file):
            return file
        at = self.archived
        if at is None or file.name != at.file:
            return None
        span = file.span.model_copy(update={"end": at.end, "last_commit": at.last_commit})
        return file.model_copy(update={"span": span})

    def _is_own(self, file: ArchivedFile) -> bool:
        is_before = self.archived is None or _covers(self.archived, file)
        return is_before or (file.incarnation, file.name) in self.recorded

    @property
    def damaged(self) -> tuple[DamagedError, ...]:
        """The errors of the objects that cannot be read, one for each object."""
        return (*self.unreadable.values(), *self.archive.damaged)

    @property
    def current(self) -> list[Summary]:
        """The readable backups, oldest first, except foreign backups and backups with a future time."""
        return [backup for backup in self.backups if backup.backup_id not in self.unchosen]

    @functools.cached_property
    def restorable(self) -> list[Summary]:
        """The backups that this host can restore, oldest first: their chains are complete and have no known damage."""
        return [backup for backup in self._whole if not self._objection(backup)]

    @functools.cached_property
    def _whole(self) -> list[Summary]:
        trusted = self.provenance.trusted(self.backups)
        whole = set(consequences(trusted, self.damage.stored()).restorable) - set(self.unchosen)
        return [backup for backup in self.backups if backup.backup_id in whole]

    @property
    def objection(self) -> str:
        """The reason why this host cannot restore the newest backup with a complete chain; "" if no reason is known."""
        return self._objection(self._whole[-1]) if self._whole else ""

    def _objection(self, backup: Summary) -> str:
        return self.no_copy(backup.source.server) if isinstance(backup.source, ServerSourcePart) else ""

    @functools.cached_property
    def window(self) -> Window:
        """The recoverable window, from the restorable server backups and the archived binlogs."""
        return window(points_of(self.restorable), self.archive.files, self.archive.state)

    @property
    def last(self) -> ArchivedFile | None:
        """The newest archived binlog that contains a transaction, in the newest history of which anything is known.

        If this history has no transaction yet, this is its newest archived binlog.
        """
        history = self._newest_history or self.archive.files
        dated = [file for file in history if file.last_commit is not None]
        return next(reversed(dated or history), None)

    @functools.cached_property
    def _newest_history(self) -> tuple[ArchivedFile, ...]:
        """The archived binlogs of the newest history that has a transaction or a proven record of completeness.

        A rewound server has no transaction yet, but the archiver records that its new history is complete.
        """
        histories = (self.archive.of(one.id) for one in reversed(self.archive.incarnations))
        return next((files for files in histories if list(self._proven_times(files))), ())

    def _proven_times(self, files: tuple[ArchivedFile, ...]) -> Iterator[int]:
        """Yield the times of last commits in the files of one history, and the time until which they are complete."""
        times = (*(file.last_commit for file in files), complete_until(files, NEWEST, self.archive.state.complete))
        yield from (time for time in times if time is not None)

    @property
    def complete_until(self) -> int | None:
        """The time up to which the newest history is archived (microseconds UTC): the last commit, or a later time."""
        return newest_not_ahead(self._proven_times(self._newest_history), self.archive.state.read_at)

    @property
    def newest_point(self) -> int | None:
        """The time of the newest restorable point (microseconds UTC); None if the window is empty.

        If archived commits have times in the future, the window is cut at the present time, and its newest point may be
        older.
        """
        if not self.window.ranges:
            return None
        end, state = self.window.ranges[-1].end, self.archive.state
        routes = [route for route in self.window.routes if route.to == end]
        if not routes or state.read_at is None or end < state.read_at:
            return end
        route = routes[-1]
        times = [
            route.point.taken,
            *(file.last_commit for file in route.files),
            complete_until(route.files, route.end, state.complete),
        ]
        return newest_not_ahead((time for time in times if time is not None), state.read_at)

    def has_drilled(self, drill: Evidence) -> bool:
        """Return whether the drill tested the present manifest of its backup, or a backup that no longer exists."""
        there = {backup.backup_id: backup.digest for backup in self.backups}
        return drill.manifest is None or there.get(drill.backup_id, drill.manifest) == drill.manifest

    @property
    def present(self) -> set[str]:
        """The names of the stored objects: backup ids, and archived files with their incarnations."""
        files = {f"{file.incarnation}/{file.name}" for file in self.archive.files}
        return {backup.backup_id for backup in self.backups} | files


def _covers(position: ArchivedPosition, file: ArchivedFile) -> bool:
    """Return whether the archived file ends at or before the position, or is in another history."""
    return file.incarnation != position.incarnation or (file.number, file.end) <= position.place


def read(instance: Instance, repository: Repository) -> Stored:
    """Read the content of the repository for the instance. Manifests are cached on this host.

    Backups that another run removes during the read are left out. Raises RepositoryError if the store cannot be
    reached.
    """
    archive = instance.archive(repository).load()
    archive = replace(archive, state=archive.state.at(instance.host.now()))
    known, checked = host_backup_record.checked_backups(instance, repository, archive)
    begun = own_archived_binlogs.begun_here(instance, repository)
    at = checked.archived if begun else None
    later = [one for one in archive.files if at and one.is_rotated and not _covers(at, one)]
    return Stored(
        repository=repository,
        backups=known.backups,
        # If no manifest is trusted, the reason may be a missing key on this host. Then report untrusted manifests too.
        unreadable={
            name: error
            for name, error in (known.unreadable if known.backups else known.unread).items()
            if name not in checked.provenance.unread
        },
        archive=checked.known_archive or archive,
        damage=known_damage(repository, instance.name),
        missing=checked.findings,
        unchosen=checked.unchosen,
        provenance=checked.provenance,
        own_backups={backup.backup_id for backup in known.backups} & set(checked.own),
        own_histories={file.incarnation for file in archive.files} & begun,
        archived=at,
        recorded=own_archived_binlogs.recorded(instance, repository, later),
        no_copy=_judge(instance),
    )


def _judge(instance: Instance) -> Callable[[ServerPart], str]:
    """Return the function for `Stored.no_copy` on this host. The function checks equal servers only once."""
    known: dict[tuple[object, ...], str] = {}

    def no_copy(server: ServerPart) -> str:
        # Import late: this module loads server programs, and is needed only for server backups.
        from zsnapdb.jobs.host.startup_requirements import startup_objections

        key = (server.flavour, server.version, server.absolute_tablespaces, server.plugins, server.zone)
        if key not in known:
            known[key] = next((one.text for one in startup_objections(instance.settings.server, server)), "")
        return known[key]

    return no_copy


def repeated(archive: Archive) -> tuple[RepeatedGtids, ...]:
    """Return the GTIDs that the server of the newest archived history assigned a second time."""
    return repeated_gtids(archive.files)


def repeated_after(instance: Instance, repository: Repository, planned: RestorePlan, server_id: int) -> str:
    """Return the GTIDs that the restored server would assign a second time under the given server_id (MariaDB).

    The result contains the GTIDs after the restored point that occur in a backup or archived binlog of any history.
    """
    if planned.point.gtids is None:
        return ""
    files = instance.archive(repository).load().files
    points = points_of(instance.summaries(repository).backups)
    known = [file.reached for file in files] + [point.gtids for point in points]
    start = parse_gtids(planned.flavour, planned.point.gtids)
    return reused_gtids(server_name(None, server_id), start, known)
