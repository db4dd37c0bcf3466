"""Shows the recoverable points of an instance, and the ages of its newest backup and binlogs.

The data comes from the repository and this host's records, so the command works without the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import DamagedError, NotFound, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health import health
from zsnapdb.jobs.health.recovery_coverage import Stored, read
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.planning.binlog.recoverable_ranges import Window
from zsnapdb.planning.clock_guard import CONFIRM
from zsnapdb.planning.damage_register import KnownDamage
from zsnapdb.planning.health.objectives import Health
from zsnapdb.planning.repository.host_backup_record import StoredFinding
from zsnapdb.planning.repository.known_backups import signing_note
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.drills import Evidence
from zsnapdb.repository.manifest_source import MachineSourcePart

_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class ProtectionStatus:
    """The state of protection of an instance at a time (UTC).

    Ages and lags are in seconds. An age or lag is None if there is no backup or no archived binlog. The window contains
    only backups whose chain is complete and has no known damage. `damaged` contains the errors of unreadable objects.
    `known_damage` is the damage that checks found.
    """

    instance: str
    at: datetime
    newest: Summary | None
    backup_age: float | None
    window: Window
    last: ArchivedFile | None
    complete_until: int | None
    """The time up to which the archive is complete (microseconds UTC): its last commit, or a later recorded time."""
    archive_lag: float | None
    """The time in seconds since `complete_until`."""
    drill: Evidence | None
    health: Health
    """The verdicts on the instance's objectives for this repository."""
    damaged: tuple[DamagedError, ...]
    missing: tuple[StoredFinding, ...] = ()
    """Differences between the repository and the backups that this host stored."""
    known_damage: tuple[KnownDamage, ...] = ()
    clock: str = ""
    """The reason why this host's clock may be wrong, and the command that confirms the clock; "" without doubt."""
    signing: str = ""
    """A note for the user if this host does not sign documents; "" if it signs them."""
    machines: tuple[str, ...] = ()
    """Restorable backups of virtual machines, oldest first. The window contains only server backups."""

    @property
    def last_commit(self) -> int | None:
        """The commit time of the last archived transaction in microseconds UTC.

        If this time is in the future, the present time is used.
        """
        known = None if self.last is None else self.last.last_commit
        return None if known is None else min(known, round(self.at.timestamp() * _MICROSECONDS))


def status(instance: Instance) -> ProtectionStatus:
    """Return the present state of protection. An instance without backups or binlogs has an empty window."""
    return status_of(instance, read(instance, instance.open_repository()))


def status_of(instance: Instance, stored: Stored) -> ProtectionStatus:
    """Return the present state of protection, computed from `stored`, the content of the repository."""
    at = instance.host.now()
    newest, complete = next(reversed(stored.current), None), stored.complete_until
    past = health.past_drills(stored, instance)
    return ProtectionStatus(
        instance=instance.name,
        at=at,
        newest=newest,
        backup_age=(at - backup_time(newest.backup_id)).total_seconds() if newest else None,
        window=stored.window,
        last=stored.last,
        complete_until=complete,
        archive_lag=max(0.0, at.timestamp() - complete / _MICROSECONDS) if complete is not None else None,
        drill=past.read[-1] if past.read else None,
        health=health.judge_instance(instance, stored, past, at),
        damaged=stored.damaged,
        missing=stored.missing,
        known_damage=tuple(item for item in stored.damage.known if item.name in stored.present),
        clock=f"{doubt}: {CONFIRM}" if (doubt := removal_time(instance.host).doubt) else "",
        signing=signing_note(instance.repository.encryption, instance.settings.repository),
        machines=tuple(
            backup.backup_id for backup in stored.restorable if isinstance(backup.source, MachineSourcePart)
        ),
    )


def alarm(status: ProtectionStatus) -> ZsnapdbError | None:
    """Return the error that the user should see; None if there is none.

    The error is DamagedError, or NotFound if no backup is restorable.
    """
    if status.damaged or any(finding.is_alarming for finding in status.missing):
        return DamagedError(
            f"the repository has damaged or missing objects of instance {status.instance}",
            hint="run `zsnapdb verify`, which lists the restorable backups",
        )
    if not status.window.ranges and not status.machines:
        return NotFound(
            f"nothing of instance {status.instance} can be restored: the repository has no restorable backup",
            hint=f"run `zsnapdb backup`; if there were backups, {OTHER_ADDRESS_HINT}",
        )
    return None


@dataclass(frozen=True)
class InstanceStatus:
    """The state of one instance in one repository, or the error if the state could not be read."""

    instance: str
    repository: str
    status: ProtectionStatus | None
    error: ZsnapdbError | None = None

    @property
    def exit_code(self) -> int:
        """0 if all objectives are met, 1 if there is a warning, 2 if an objective is broken.

        If the state could not be read, the value is the exit code of the error.
        """
        if self.status is None:
            return self.error.exit_code if self.error is not None else ZsnapdbError.exit_code
        error = alarm(self.status)
        return error.exit_code if error is not None else self.status.health.verdict.rank


_PATIENCE = 30.0
"""The maximum time in seconds for retries of an unreachable repository, because monitoring needs an answer soon."""


def statuses(settings: Settings, repository: str | None) -> list[InstanceStatus]:
    """Return the state of every configured instance in its own repository or, if a repository is given, in that one.

    If an error occurs with one instance, its entry contains the error, and the other instances are still read.
    """
    return [observed(Instance.at(settings, name, repository)) for name in sorted(settings.instance)]


def observed(instance: Instance) -> InstanceStatus:
    """Return the state of one instance, or the error if the state could not be read.

    If the store is unreachable, requests are retried only for a short time.
    """
    name, place = instance.name, instance.settings.repository
    try:
        return InstanceStatus(name, place, status(instance.impatient(_PATIENCE)))
    except ZsnapdbError as error:
        return InstanceStatus(name, place, None, error)


def archived(instance: Instance) -> Archive:
    """Return the archived binlogs of the instance."""
    return instance.archive(instance.open_repository()).load()
