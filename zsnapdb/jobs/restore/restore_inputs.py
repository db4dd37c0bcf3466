"""Reads the facts that a restore needs from the repository, archive and host, and decides which state is the newest.

The facts are read once. An older state is never treated as the newest, even if the newest stored state cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeVar

from zsnapdb.base.domain_types import parse_gtids, pool_of
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs, point_of
from zsnapdb.jobs.record import host_backup_record, production_restores
from zsnapdb.jobs.record.host_backup_record import StoredCheck
from zsnapdb.jobs.record.record_file import BACKUPS, read
from zsnapdb.jobs.restore.offline_repository import archive_of, is_stand_in
from zsnapdb.planning import creation_order
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.binlog.recoverable_ranges import leading
from zsnapdb.planning.binlog.route import NEWEST, EndKind, RouteMap
from zsnapdb.planning.binlog.route_start import held_by
from zsnapdb.planning.repository.backup_writers import writers
from zsnapdb.planning.repository.host_backup_record import BackupRecord
from zsnapdb.planning.restore import newest_state_check, route_choice
from zsnapdb.planning.restore.newest_state_check import UnusableArchive, UnusableBackup
from zsnapdb.planning.restore.plan import RestoreOrigin, SetStanding
from zsnapdb.planning.restore.point_forms import AtBackup, Latest, Target
from zsnapdb.planning.restore.route_choice import RestoreRoute
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summaries, Summary, manifest_of
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage

_GONE = "this host stored it, and the repository lacks it: deleted, hidden, or rolled back"
_REWRITTEN = "its manifest is not the one that this host stored"
_FUTURE = "it is from the future by the clock of this host, and this host did not store it"
Backup = Manifest | Summary
"""The summary of a stored backup (without chunks), or the manifest of a local set."""
B = TypeVar("B", bound=Backup)


def catalogue_of(instance: Instance, repository: Repository, archive: Archive | None) -> tuple[Summaries, StoredCheck]:
    """Return all backups, oldest first, and their comparison with this host's record. Warn about differences.

    If the store is unreachable, no backup is reported as missing.
    """
    if is_stand_in(repository):
        return Summaries((), {}), StoredCheck()
    catalogue = instance.summaries(repository)
    checked = host_backup_record.check(instance, repository, catalogue.backups, catalogue.unread, archive)
    checked.warn(instance)
    return replace(catalogue, backups=checked.ordered(catalogue.backups)), checked


class _LastArchived(Enum):
    """The position of the last archived binlog relative to the newest backup, whose binlog is not archived."""

    BEFORE_BACKUP = auto()
    ABANDONED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class RestoreFacts:
    """The facts from repository, archive and host for a restore to a target.

    `requested` is the text of the target as the user wrote it. `archive` is None if the target does not need it.
    `history` is the id of the binlog history that contains the target. It is needed if several histories contain the
    target. With `accepts_older`, the newest usable state is restored if the newest state cannot be used.
    """

    instance: Instance
    repository: Repository
    target: Target
    requested: str
    catalogue: Summaries
    checked: StoredCheck
    archive: Archive | None = None
    history: str | None = None
    accepts_older: bool = False
    _whole: dict[str, Manifest] = field(default_factory=dict, compare=False)

    @property
    def named(self) -> str | None:
        """The id of the requested backup; None if the target is not a specific backup."""
        return self.target.backup_id if isinstance(self.target, AtBackup) else None

    def unusable(self) -> tuple[UnusableBackup, ...]:
        """Return the stored backups that cannot be used.

        The manifest of such a backup is unreadable, missing or replaced, or has a future time.
        """
        foreign = self.checked.provenance.unread
        unreadable = {name: error for name, error in self.catalogue.unreadable.items() if name not in foreign}
        unusable = [UnusableBackup(name, error.message) for name, error in unreadable.items()]
        unusable += [UnusableBackup(name, _REWRITTEN) for name in self.checked.provenance.rewritten]
        unusable += [UnusableBackup(name, _FUTURE) for name in self._newer_future()]
        for missing in self.checked.missing:
            known = missing.recorded
            if known is None or known.flavour is None or known.gtids is None:
                unusable.append(UnusableBackup(missing.backup_id, _GONE))
            else:
                gtids = parse_gtids(known.flavour, known.gtids)
                unusable.append(UnusableBackup(missing.backup_id, _GONE, known.server, gtids))
        return tuple(unusable)

    def _newer_future(self) -> list[str]:
        """Return the backups that have a future time and are newer than every backup that may be chosen."""
        ids, unchosen = [manifest.backup_id for manifest in self.catalogue.backups], self.checked.unchosen
        newest_present = max((number for number, name in enumerate(ids) if name not in unchosen), default=-1)
        return [name for name in ids[newest_present + 1 :] if name in self.checked.doubtful_future]

    def choosable(self, history: str | None = None) -> tuple[Summary, ...]:
        """Return the backups that may be used for the target. If the target names a backup, return all backups.

        Otherwise foreign backups and backups with a future time are omitted. If the newest state is requested without a
        `history`, backups of a state that production discarded are also omitted.
        """
        if self.named is not None:
            return self.catalogue.backups
        asks_for_newest = newest_state_check.asks_for_newest(self.target) and history is None
        but = self.checked.unchosen if asks_for_newest else self.checked.unbelieved
        return tuple(manifest for manifest in self.catalogue.backups if manifest.backup_id not in but)

    def refuse_without_any(self) -> None:
        """Raise DamagedError if backups were stored but none of them can be used."""
        backups = self.unusable()
        if backups and not self.choosable() and newest_state_check.asks_for_newest(self.target):
            listed = [f"backup {item.backup_id}: {item.why}" for item in backups]
            raise newest_state_check.refusal(self.requested, "nothing", listed)
        if self.checked.taken_back and not self.choosable():
            raise newest_state_check.abandoned_history_error(self.requested, self.checked.taken_back)

    def of_servers(self) -> list[Summary]:
        """Return the backups of database servers that may be used for the target.

        Raises:
            PreflightError: the requested backup is not a server backup, or there are no server backups.
        """
        manifests = self.choosable(self.history)
        servers = [manifest for manifest in manifests if is_of_server(manifest)]
        if isinstance(self.target, AtBackup | Latest):
            asked = [manifest for manifest in manifests if self.named in (None, manifest.backup_id)]
        else:
            asked = [] if servers else list(manifests)
        if asked:
            server_source(asked[-1])
        return servers

    def of_one_server(self, manifests: Sequence[B]) -> list[B]:
        """Return the backups of the server whose newest state is requested.

        Several servers may have written backups under the name of the instance. If this host stored backups, its server
        is chosen. Otherwise the GTIDs must prove that one server continued from all the other servers. For the latest
        state of a named history, all backups are returned.

        Raises:
            HistoryError: no server can be chosen.
        """
        is_named = self.history is not None and isinstance(self.target, Latest)
        known_writers = writers(manifests, removal_time(self.instance.host).at)
        if len(known_writers) < 2 or is_named or not newest_state_check.asks_for_newest(self.target):
            return list(manifests)
        chosen = [writer for writer in known_writers if set(writer.backups) & set(self.checked.own)]
        if not chosen:
            ends = {manifest.backup_id: point_of(manifest) for manifest in manifests}
            chosen = list(newest_state_check.last_writers(known_writers, ends))
        if len(chosen) > 1 and not self.checked.own:
            raise newest_state_check.ambiguous(self.instance.name, chosen)
        names = {backup_id for writer in chosen for backup_id in writer.backups}
        return [manifest for manifest in manifests if manifest.backup_id in names]

    def with_local_sets(self, stored: Sequence[Summary], origin: RestoreOrigin, top: str | None) -> list[Backup]:
        """Return the stored backups and the local sets from which a restore may start, oldest first.

        If the repository or the newest backup was requested, local sets are omitted. Local sets must belong to the
        server of the newest stored backup. They must be in the pool of the target `top`, because a clone stays in its
        pool. If `top` is None, they may be in any pool.
        """
        if origin is RestoreOrigin.REPOSITORY or self.target == AtBackup(None):
            return list(stored)
        known = {manifest.backup_id for manifest in stored}
        writer = stored[-1].writer if stored else None
        loaded = local_snapshot.load(self.instance)
        asks_for_newest = newest_state_check.asks_for_newest(self.target)
        left = production_restores.backups_taken_back(self.instance, loaded) if asks_for_newest else {}
        local = [
            manifest
            for manifest in loaded
            if manifest.backup_id not in (known | left.keys())
            and is_of_server(manifest)
            and writer in (None, manifest.writer)
            and (top is None or all(pool_of(volume.dataset) == pool_of(top) for volume in manifest.volumes))
        ]
        together: list[Backup] = [*stored, *local]
        return list(self.checked.ordered(together))

    def present_archive(self, candidates: Sequence[Backup]) -> Archive | None:
        """Return the archive if production now writes the archive's newest history; else None.

        This check applies only to the target `latest`. A restore that replaced production, or `zfs rollback`, may have
        abandoned the newest archived history. The history is current if a later backup can be rolled forward into it,
        or if production has its binlogs. It is abandoned if production has the newest backup's binlog instead. If the
        files of production show that all archived binlogs ended before the newest backup, an empty archive is returned.

        Raises:
            HistoryError: the archived history is not the current history of production, there is no later backup, and
                the target accepts no older state.
        """
        put_back = production_restores.read_production_restores(self.instance)
        archive, target = self.archive, self.target
        lost = self.checked.rolled_back
        is_left = put_back.last is not None or bool(lost)
        if not isinstance(target, Latest) or self.history is not None or archive is None:
            return archive
        last = archive.files[-1] if archive.files else None
        if last is not None and candidates:
            place = self._place_of_last(archive, last, candidates[-1])
            if place is _LastArchived.ABANDONED:
                return None
            if place is _LastArchived.BEFORE_BACKUP:
                # Leave out all archived binlogs: none is newer than the backup, even if the times in the binlogs are
                # later.
                return replace(archive, files=())
        if not is_left:
            return archive
        later = self._later_than_rolled_back(candidates)
        since = [manifest for manifest in later if put_back.last is None or put_back.is_since(manifest)]
        if last is None or not candidates or _leads_into(last, since, archive):
            return archive
        server = server_source(self.whole(candidates[-1])).server
        is_here = LocalBinlogs.of(server.variables, server.key_files).has(last)
        if is_here and (not target.accepts_older or _leads_into(last, candidates, archive)):
            return archive
        if not since and not target.accepts_older and put_back.last is not None:
            restore_id = put_back.last.restore_id
            raise newest_state_check.left_history_error(
                self.instance.name, restore_id, last.name, candidates[-1].backup_id
            )
        return None

    def _place_of_last(self, archive: Archive, last: ArchivedFile, newest_backup: Backup) -> _LastArchived:
        """Return whether the last archived binlog ended before the newest backup or was abandoned, or UNKNOWN.

        The files of production decide this if the archive lacks the newest backup's binlog and production has a binlog
        with the same head. Otherwise the result is UNKNOWN. If production has the last archived binlog, only its number
        is compared, because the server id may have changed later. If production lacks that binlog, the result is
        UNKNOWN unless the same server wrote both binlogs. In that case the last archived binlog ended before the backup
        if its number is lower and production has no other binlog with that name. If production has such a binlog, or if
        the number is not lower, production abandoned the archived history.
        """
        point = point_of(newest_backup)
        if point.coordinates is None or point.fingerprint is None:
            return _LastArchived.UNKNOWN
        if RouteMap(archive.files, archive.state).follow(point).end.kind is not EndKind.NOT_ARCHIVED:
            return _LastArchived.UNKNOWN
        if held_by(point, archive.files) > 0:
            return _LastArchived.UNKNOWN
        server = server_source(self.whole(newest_backup)).server
        local = LocalBinlogs.of(server.variables, server.key_files)
        if not local.has_head(point.coordinates.file, point.fingerprint):
            return _LastArchived.UNKNOWN
        base, _, number = point.coordinates.file.rpartition(".")
        is_same_series = last.name.rpartition(".")[0] == base
        if local.has(last):
            is_before = is_same_series and last.number < int(number)
            return _LastArchived.BEFORE_BACKUP if is_before else _LastArchived.UNKNOWN
        if last.server != point.server:
            return _LastArchived.UNKNOWN
        if is_same_series and last.number < int(number) and last.name not in local.paths:
            return _LastArchived.BEFORE_BACKUP
        return _LastArchived.ABANDONED if last.name in local.paths or is_same_series else _LastArchived.UNKNOWN

    def _later_than_rolled_back(self, candidates: Sequence[Backup]) -> list[Backup]:
        """Return the candidates that ZFS created after the last backup whose state `zfs rollback` discarded."""
        lost = [one for one in self.catalogue.backups if one.backup_id in self.checked.rolled_back]
        if not lost:
            return list(candidates)
        last = creation_order.by_creation(lost, lambda one: one.createtxg)[-1]
        earlier = creation_order.made_before(candidates, last.createtxg + 1)
        return [one for one in candidates if one.pool_guid == last.pool_guid and one not in earlier]

    def notes_on_archive(self, used: Archive | None) -> tuple[str, ...]:
        """Return a note if archived binlogs are not used because production was returned to an earlier state."""
        is_left = production_restores.read_production_restores(self.instance).last is not None
        if used is not None or self.archive is None or not self.archive.files or is_left:
            return ()
        note = (
            f"the archived binlogs are not followed, as nothing shows that {self.archive.files[-1].name} is of what"
            f" {self.instance.name} wrote since it was set back; a time, a GTID or --history reaches its state"
        )
        return (note,)

    def whole(self, backup: Backup) -> Manifest:
        """Return the manifest of a backup, which is read only once. Raises the errors of `manifest_of`."""
        if isinstance(backup, Manifest):
            return backup
        if backup.backup_id not in self._whole:
            self._whole[backup.backup_id] = manifest_of(self.repository, backup)
        return self._whole[backup.backup_id]

    def chain_of(self, backup: Backup) -> tuple[Manifest, ...]:
        """Return the chain of backups that must be received to restore this backup, the full backup first.

        Raises:
            DamagedError: a backup of the chain is missing; the message names it.
        """
        if backup.is_full:
            return (self.whole(backup),)
        damaged = known_damage(self.repository, self.instance.name).stored()
        stored: Sequence[Backup] = self.checked.provenance.trusted(self.catalogue.backups)
        return tuple(self.whole(link) for link in restore_chain(stored, backup, damaged))

    def notes_beside(self, chosen: str) -> tuple[str, ...]:
        """Return notes on newer backups that were not chosen: they are foreign, or production discarded their state.

        If the target is a time or a GTID, the only possible note is that production discarded the state of the chosen
        backup.
        """
        ids, taken_back = [manifest.backup_id for manifest in self.catalogue.backups], self.checked.taken_back
        if not newest_state_check.asks_for_newest(self.target) or chosen not in ids:
            why = taken_back.get(chosen)
            return (f"backup {chosen} is of a history that production left: {why}",) if why is not None else ()
        unchosen, later = self.checked.provenance.unchosen, ids[ids.index(chosen) + 1 :]
        foreign = [name for name in later if name in unchosen]
        left = [name for name in later if name in taken_back and name not in unchosen]
        return (
            *(
                f"newer, and foreign: {name}: {unchosen[name]}; name the id to use it, or adopt it (`zsnapdb adopt`)"
                for name in foreign
            ),
            *(f"newer, and taken back: {name}: {taken_back[name]}; name the id to use it" for name in left),
        )

    def notes_on_newer(
        self, chosen: str, choice: RestoreRoute | None = None, local: Sequence[Backup] = ()
    ) -> tuple[str, ...]:
        """Return notes on unusable states that are newer than the chosen backup and the route `choice`.

        `local` contains the local sets among the candidates.

        Raises:
            DamagedError: there are unusable newer states, and an older state is not accepted.
        """
        beside = self.notes_beside(chosen)
        if not newest_state_check.asks_for_newest(self.target):
            return beside
        if choice is not None and choice.route.end.kind is EndKind.NEWEST and choice.route.end != NEWEST:
            beside = (*beside, choice.route.end.reason)
        checked = self.checked
        short = next((finding for finding in checked.findings if checked.archive and finding.is_archive), None)
        lost = checked.archive
        archive = UnusableArchive(short.text, lost.last_commit, lost.file, lost.end) if short and lost else None
        order = checked.order_with([*self.catalogue.backups, *local]) if local else checked.order
        newer = newest_state_check.newer_than(chosen, choice, self.unusable(), archive, order)
        if newer and not self.accepts_older:
            instead = f"backup {chosen}" + (" and the archived binlogs after it" if choice and choice.files else "")
            error: DamagedError = newest_state_check.refusal(self.requested, instead, newer)
            raise error
        return (*(f"newer, and cannot be used: {text}" for text in newer), *beside)


def read_known(
    instance: Instance,
    repository: Repository,
    target: Target,
    requested: str,
    *,
    accepts_older: bool = False,
    history: str | None = None,
    origin: RestoreOrigin = RestoreOrigin.REPOSITORY,
    reads_archive: bool = True,
) -> RestoreFacts:
    """Read the facts that a restore to this target needs. Raises the errors of `refuse_without_any`."""
    if isinstance(target, AtBackup) and target.backup_id is not None:
        is_set = origin is not RestoreOrigin.REPOSITORY and local_snapshot.read(instance, target.backup_id) is not None
        if not is_set:
            # Read the manifest now, so that a damaged manifest is reported as damaged and not as missing.
            repository.manifest(instance.name, target.backup_id)
    needs_archive = reads_archive and not isinstance(target, AtBackup)
    archive = archive_of(instance, repository, target).load() if needs_archive else None
    catalogue, checked = catalogue_of(instance, repository, archive)
    # A replay executes the statements of the binlogs, so foreign binlogs are used only after their adoption.
    archive = checked.known_archive or archive
    known = RestoreFacts(instance, repository, target, requested, catalogue, checked, archive, history, accepts_older)
    known.refuse_without_any()
    return known


def _leads_into(last: ArchivedFile, backups: Sequence[Backup], archive: Archive) -> bool:
    """Return whether one of these backups can be rolled forward into the history of the archived binlog `last`."""
    if not backups:
        return False
    points_here = [point_of(manifest) for manifest in backups]
    route = leading(points_here, RouteMap(archive.files, archive.state).follow)
    return any(file.incarnation == last.incarnation for file in route.files)


def newest_backup(instance: Instance, repository: Repository, *, accepts_older: bool) -> str:
    """Return the id of the newest server backup with a readable manifest.

    Raises:
        DamagedError: a newer backup was stored but cannot be used, and the caller accepts no older backup.
        NotFound: there is no backup.
        PreflightError: the newest backup is not a server backup.
    """
    known = read_known(instance, repository, AtBackup(None), "latest", accepts_older=accepts_older)
    candidates = tuple(point_of(manifest) for manifest in known.of_one_server(known.of_servers()))
    choice = route_choice.choose(known.target, candidates, (), instance.host.now())
    for note in known.notes_on_newer(choice.point.backup_id, choice):
        instance.events.warn(note)
    return choice.point.backup_id


def is_local_set(manifest: Backup) -> bool:
    """Return whether this is a local set. A local set can be cloned, but not received."""
    return isinstance(manifest, Manifest) and manifest.repository_id == local_snapshot.IN_NO_REPOSITORY


def find_set_standing(instance: Instance, backup_id: str) -> SetStanding:
    """Return whether this host's records list a stored backup of the set. Do not read the store.

    A manifest on this host does not prove that the set exists only here. The host also keeps manifests of stored
    backups, for use while the store is unreachable.
    """
    folder = instance.host.records / instance.name
    try:
        records = [read(place / BACKUPS, BackupRecord) for place in sorted(folder.iterdir()) if place.is_dir()]
    except FileNotFoundError:
        return SetStanding.LOCAL
    except (OSError, DamagedError):
        return SetStanding.UNKNOWN
    stored = {backup.backup_id for record in records if record is not None for backup in record.stored}
    return SetStanding.STORED if backup_id in stored else SetStanding.LOCAL
