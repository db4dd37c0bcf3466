"""The result of a comparison of a repository with what this host stored there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning import order
from zsnapdb.planning.order import PlacedLink
from zsnapdb.planning.repository import host_record
from zsnapdb.planning.repository.host_record import (
    ArchivedPosition,
    BackupRecord,
    LocalBackup,
    MissingBackup,
    StoredFinding,
)
from zsnapdb.planning.repository.known import Provenance
from zsnapdb.repository.binlog_contents import Archive

P = TypeVar("P", bound=PlacedLink)


@dataclass(frozen=True)
class StoredCheck:
    """A repository held against what this host stored there.

    `missing` are backups that the repository lacks, `archive` the newest archived position if the archive does not
    reach it, and `order` the ids of all backups, also of those that are missing, oldest first.
    """

    findings: tuple[StoredFinding, ...] = ()
    missing: tuple[MissingBackup, ...] = ()
    archive: ArchivedPosition | None = None
    order: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    """The ids of the backups that are this host's own, by its record and its snapshots."""
    future: Mapping[str, datetime] = field(default_factory=dict)
    """The times of the backups from the future, by backup id. They are chosen for nothing unless named."""
    provenance: Provenance = field(default_factory=Provenance)
    """Which backups this host knows, and which are foreign."""
    record: BackupRecord | None = None
    local: tuple[LocalBackup, ...] = ()
    known_archive: Archive | None = None
    """The part of the archive that this host knows, None if the binlogs were not looked at."""
    taken_back: Mapping[str, str] = field(default_factory=dict)
    """The backups of states that a restore took back from production, and which restore that was, by backup id."""

    @property
    def unbelieved(self) -> Mapping[str, str]:
        """The backups from the future and the foreign ones, and why nothing chooses them, by backup id."""
        return {**dict.fromkeys(self.future, "it is from the future"), **self.provenance.unchosen}

    @property
    def unchosen(self) -> Mapping[str, str]:
        """The backups that are chosen for nothing unless a person names them, and why, by backup id."""
        return {**self.taken_back, **self.unbelieved}

    @property
    def doubtful_future(self) -> Collection[str]:
        """The backups from the future on a host that knows no backup: each may be the newest."""
        return self.future.keys() - self.provenance.unchosen.keys()

    def order_with(self, there: Sequence[PlacedLink]) -> tuple[str, ...]:
        """Return `order` for other backups and sets than those that were compared, such as local sets beside them."""
        if self.record is None:
            return self.order
        return host_record.order_of(self.record, self.local, there, self.provenance.unchosen)

    def ordered(self, there: Sequence[P]) -> tuple[P, ...]:
        """Return these stored backups oldest first. No foreign one changes the order of the others."""
        foreign = self.provenance.unchosen
        believed = {backup.backup_id for backup in there if backup.backup_id not in foreign}
        abandoned = self.record.abandoned if self.record is not None else order.NOTHING
        return tuple(order.in_order(there, believed, abandoned))

    def numbers(self, there: Sequence[PlacedLink]) -> tuple[int | None, ...]:
        """Return the sequence numbers of these stored backups, without foreign ones: nobody else uses up numbers."""
        return tuple(backup.sequence for backup in there if backup.backup_id not in self.provenance.unchosen)

    def warn(self, instance: Instance) -> None:
        """Report every finding as a warning of the instance's job."""
        for finding in self.findings:
            if finding.is_warning:
                instance.events.warn(f"{finding.text} (hint: {finding.hint})")
