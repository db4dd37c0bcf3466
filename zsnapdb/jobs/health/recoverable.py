"""What of an instance's server can be recovered from its backups and its archived binlogs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.model import parse_gtids, server_name
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.archived_binlogs import points_of
from zsnapdb.jobs.record import host_record
from zsnapdb.planning.binlog.completeness import complete_until
from zsnapdb.planning.binlog.route import NEWEST
from zsnapdb.planning.binlog.takeover import RepeatedGtids, given_again, repeated_gtids
from zsnapdb.planning.binlog.window import Window, window
from zsnapdb.planning.damage import DamageRegister
from zsnapdb.planning.repository.host_record import StoredFinding
from zsnapdb.planning.repository.known import Provenance
from zsnapdb.planning.repository.verification import consequences
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.drills import Evidence
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.sources import ServerPart, ServerSourcePart
from zsnapdb.repository.verifications import known_damage


@dataclass(frozen=True)
class Stored:
    """What a repository holds of an instance, as one reading of it found it.

    `unreadable` has an error for each backup whose manifest cannot be read. `missing` is what the repository lacks of
    what this host stored, `unchosen` are the backups from the future and the foreign ones, which count for nothing.
    `provenance` says which backups this host knows.
    """

    repository: Repository
    backups: tuple[Summary, ...]
    unreadable: Mapping[str, DamagedError]
    archive: Archive
    damage: DamageRegister
    missing: tuple[StoredFinding, ...]
    unchosen: Collection[str]
    provenance: Provenance = field(default_factory=Provenance)
    no_copy: Callable[[ServerPart], str] = lambda _: ""
    """Returns why this host cannot start a server on a copy of that server's files; "" if it can."""

    @property
    def damaged(self) -> tuple[DamagedError, ...]:
        """An error for each object that cannot be read."""
        return (*self.unreadable.values(), *self.archive.damaged)

    @property
    def current(self) -> list[Summary]:
        """The readable backups that count, oldest first: no foreign one, and none from the future."""
        return [backup for backup in self.backups if backup.backup_id not in self.unchosen]

    @functools.cached_property
    def restorable(self) -> list[Summary]:
        """The backups that this host can restore, oldest first: chains are complete and not known to be damaged."""
        return [backup for backup in self._whole if not self._objection(backup)]

    @functools.cached_property
    def _whole(self) -> list[Summary]:
        trusted = self.provenance.trusted(self.backups)
        whole = set(consequences(trusted, self.damage.stored()).restorable) - set(self.unchosen)
        return [backup for backup in self.backups if backup.backup_id in whole]

    @property
    def objection(self) -> str:
        """Why this host cannot restore the newest backup whose chain is complete; "" if it can."""
        return self._objection(self._whole[-1]) if self._whole else ""

    def _objection(self, backup: Summary) -> str:
        return self.no_copy(backup.source.server) if isinstance(backup.source, ServerSourcePart) else ""

    @functools.cached_property
    def window(self) -> Window:
        """What can be recovered from the restorable backups of servers and the archived binlogs."""
        return window(points_of(self.restorable), self.archive.files, self.archive.state)

    @property
    def last(self) -> ArchivedFile | None:
        """The newest file with a transaction, of the newest history that has any.

        The newest file of all if no server has committed one yet.
        """
        newest = self._newest_history
        return newest[-1] if newest else self.archive.files[-1] if self.archive.files else None

    @property
    def _newest_history(self) -> list[ArchivedFile]:
        """The files with transactions of the newest history that has any."""
        dated = [file for file in self.archive.files if file.last_commit is not None]
        histories = {file.incarnation for file in dated}
        newest = next((one.id for one in reversed(self.archive.incarnations) if one.id in histories), None)
        return [file for file in dated if file.incarnation == newest]

    @property
    def complete_until(self) -> int | None:
        """Until when the archive of `last` is complete (microseconds UTC): its last commit, or a recorded time."""
        last = self.last
        if last is None:
            return None
        recorded = complete_until(self.archive.of(last.incarnation), NEWEST, self.archive.state.complete)
        times = [*(file.last_commit for file in self._newest_history), recorded]
        return max((self.archive.state.until(time) for time in times if time is not None), default=None)

    def has_drilled(self, drill: Evidence) -> bool:
        """Whether a drill was of what is stored now under the id of its backup, or of a backup that is gone since."""
        there = {backup.backup_id: backup.digest for backup in self.backups}
        return drill.manifest is None or there.get(drill.backup_id, drill.manifest) == drill.manifest

    @property
    def present(self) -> set[str]:
        """The names of what is there: ids of backups, and archived files with their incarnations."""
        files = {f"{file.incarnation}/{file.name}" for file in self.archive.files}
        return {backup.backup_id for backup in self.backups} | files


def read(instance: Instance, repository: Repository) -> Stored:
    """Read what the repository holds of the instance. Manifests that were read before are cached on this host.

    A backup that is removed meanwhile is none. RepositoryError if the store cannot be reached.
    """
    archive = instance.archive(repository).load()
    archive = replace(archive, state=archive.state.at(instance.host.now()))
    known, checked = host_record.stored(instance, repository, archive)
    return Stored(
        repository=repository,
        backups=known.backups,
        # Where none is believed, a key may be missing here: that is more than strangers beside the own backups.
        unreadable=known.unreadable if known.backups else known.unread,
        archive=checked.known_archive or archive,
        damage=known_damage(repository, instance.name),
        missing=checked.findings,
        unchosen=checked.unchosen,
        provenance=checked.provenance,
        no_copy=_judge(instance),
    )


def _judge(instance: Instance) -> Callable[[ServerPart], str]:
    """Return the judge of this host, which looks for the files of each list of plugins once."""
    known: dict[tuple[object, ...], str] = {}

    def no_copy(server: ServerPart) -> str:
        # What knows server programs is loaded where there is a backup of a server.
        from zsnapdb.jobs.host.restorable import objections

        key = (server.flavour, server.version, server.absolute_tablespaces, server.plugins, server.zone)
        if key not in known:
            known[key] = next((one.text for one in objections(instance.settings.server, server)), "")
        return known[key]

    return no_copy


def repeated(archive: Archive) -> tuple[RepeatedGtids, ...]:
    """Return the GTIDs that the server whose binlogs were archived last gives again."""
    return repeated_gtids(archive.files)


def repeated_after(instance: Instance, repository: Repository, planned: RestorePlan, server_id: int) -> str:
    """Return the GTIDs that the restored server would give again under this server_id (MariaDB).

    These are GTIDs of backups and of archived binlogs, of any history, after the point. Empty if there are none.
    """
    if planned.point.gtids is None:
        return ""
    files = instance.archive(repository).load().files
    points = points_of(instance.summaries(repository).backups)
    known = [file.reached for file in files] + [point.gtids for point in points]
    start = parse_gtids(planned.flavour, planned.point.gtids)
    return given_again(server_name(None, server_id), start, known)
