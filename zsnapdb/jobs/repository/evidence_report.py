"""Collects the facts for an audit of an instance: its runs, objectives and protection, and who can read its backups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.repository import KeepSettings, RepositorySettings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health import evidence_records
from zsnapdb.jobs.health.evidence_records import EvidenceLog
from zsnapdb.jobs.record.host_backup_record import drilled_here
from zsnapdb.jobs.repository.protection_status import ProtectionStatus, status
from zsnapdb.planning.creation_order import contradicted
from zsnapdb.planning.evidence import POLICY
from zsnapdb.planning.health.daily_summary import CompletedRun, JudgedDay, ReportedDay, days, judge_day
from zsnapdb.repository import drills
from zsnapdb.repository.drills import Evidence, PastDrills
from zsnapdb.repository.evidence_log import EvidenceRecord

_USUAL_DAYS = timedelta(days=30)
_CLOCKS = timedelta(minutes=5)
"""The maximum tolerated difference between the clocks of two hosts."""
_ONCE = ("backup", "drill", "prune", "restore", "clone")
"""The jobs that create only one result for each run id."""


@dataclass(frozen=True)
class EvidenceReport:
    """The evidence for a period of days, and the state of protection at the time `at` (UTC).

    `drills` contains the drills that started in this period. `keep` is the retention policy. If `keep` is None, no
    backup is ever removed.
    """

    at: datetime
    log: EvidenceLog
    days: tuple[ReportedDay, ...]
    drills: PastDrills
    protection: ProtectionStatus
    objectives: ObjectiveSettings
    keep: KeepSettings | None
    repository: RepositorySettings

    @property
    def judged_days(self) -> tuple[JudgedDay, ...]:
        return tuple(judge_day(day, self.objectives) for day in self.days)

    @property
    def of_wrong_clocks(self) -> tuple[EvidenceRecord, ...]:
        """The trusted records in the whole evidence log whose times contradict the order of the records."""
        log = self.log.believed
        wrong = contradicted([record.finished for record in log], _CLOCKS)
        return tuple(record for record, is_wrong in zip(log, wrong, strict=True) if is_wrong)

    @property
    def longest_drill(self) -> Evidence | None:
        """The longest passed drill of the period. The report shows its duration as the measured restore time."""
        passed = [one for one in self.drills.read if one.outcome is drills.Outcome.PASSED]
        return max(passed, key=lambda one: one.seconds, default=None)


def report(instance: Instance, first: date | None, last: date | None) -> EvidenceReport:
    """Return the report for the days from `first` to `last` (UTC). The default is the last 30 days."""
    now = instance.host.now()
    end = last or now.date()
    begin = first or end - _USUAL_DAYS
    log = evidence_records.read(instance)
    runs = [
        CompletedRun(record.job, record.finished, (record.finished - record.started).total_seconds(), record.exit_code)
        for record in _without_repeats(log.believed)
        if record.job != POLICY
    ]
    return EvidenceReport(
        at=now,
        log=log,
        days=days(runs, begin, end, now),
        drills=_drills(instance, begin, end),
        protection=status(instance),
        objectives=instance.settings.objectives,
        keep=instance.settings.keep or instance.repository.keep,
        repository=instance.repository,
    )


def _without_repeats(records: Sequence[EvidenceRecord]) -> Iterator[EvidenceRecord]:
    """Yield the records, except records of `--once` runs that only repeated a completed run and changed nothing."""
    done = set[tuple[str, str, str]]()
    for record in records:
        if record.job in _ONCE and record.exit_code == 0:
            action = (record.job, record.run_id, record.about)
            if action in done:
                continue
            done.add(action)
        yield record


def _drills(instance: Instance, first: date, last: date) -> PastDrills:
    repository = instance.open_repository()
    read, unreadable = [], []
    for key in drills.keys(repository, instance.name):
        if not first <= backup_time(key.drill_id).date() <= last:
            continue
        try:
            read.append(drills.read_at(repository, instance.name, key))
        except DamagedError:
            unreadable.append(key.drill_id)
    there = set(drills.ids(repository, instance.name))
    missing = tuple(one for one in drilled_here(instance, repository) if one not in there)
    return PastDrills(tuple(read), tuple(unreadable), missing)
