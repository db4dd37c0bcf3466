"""Judges the health of an instance from facts about its backups and binlogs.

The facts come from repositories and this host's records, not from servers. The only facts about the server itself are
the state of its systemd unit and the free space of its volumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import UsageError, ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health.recovery_coverage import Stored, read
from zsnapdb.jobs.host.agent_presence import lacks_agent
from zsnapdb.jobs.host.volume_space import find_full_volume
from zsnapdb.jobs.record import host_backup_record, record_file
from zsnapdb.jobs.steps import journal
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.health.facts import (
    CheckFact,
    CopyFact,
    DrillFact,
    ExchangeFact,
    HealthFacts,
    LockFact,
    StoppedServer,
)
from zsnapdb.planning.health.objectives import Health, judge, restore_seconds, start_without_gap
from zsnapdb.repository import drills, layout, verifications
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.drills import Evidence, Outcome, PastDrills
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks, Depth

_DRILLS = 10
"""The maximum number of newest drills to read. Each drill is a separate object."""
_NAMED = 5
"""The maximum number of rejected drills that one message lists."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def past_drills(stored: Stored, instance: Instance) -> PastDrills:
    """Return the newest drills of the instance that have evidence."""
    own = host_backup_record.drilled_here(instance, stored.repository)
    return drills.past(stored.repository, instance.name, _DRILLS, own)


def judge_instance(instance: Instance, stored: Stored, past: PastDrills, at: datetime) -> Health:
    """Return the verdicts on the instance's objectives for its backups in the given repository."""
    return judge(facts(instance, stored, past, at), instance.settings.objectives)


def facts(instance: Instance, stored: Stored, past: PastDrills, at: datetime) -> HealthFacts:
    """Return the facts that the configured objectives need. No other facts are read."""
    objectives, restorable, window, repository = (
        instance.settings.objectives,
        stored.restorable,
        stored.window,
        stored.repository,
    )
    passed = [evidence for evidence in past.read if evidence.outcome is Outcome.PASSED and stored.has_drilled(evidence)]
    own = stored.own_part
    newest = backup_time(own.restorable[-1].backup_id) if own.restorable else None
    is_checked = objectives.verify_age is not None or objectives.deep_verify_age is not None
    digests = {backup.backup_id: backup.digest for backup in stored.backups}
    checks = verifications.read(repository, instance.name).about(digests) if is_checked else Checks()
    begin = start_without_gap(window)
    return HealthFacts(
        instance=instance.name,
        repository=instance.settings.repository,
        at=at,
        newest_point=_moment(point) if (point := own.newest_point) is not None else newest,
        window_start=_moment(begin) if begin is not None else newest,
        newest_backup=newest,
        archived_until=_moment(own.complete_until) if own.complete_until is not None else None,
        unprotected=window.unprotected.reason if window.ranges and window.unprotected is not None else "",
        no_copy=stored.objection,
        damage=(
            *(error.message for error in stored.damaged),
            *(finding.text for finding in stored.missing if finding.is_alarming),
        ),
        doubts=_doubts(stored, past),
        room=record_file.objections(instance.host.records),
        newest_drill=_drill(past.read[-1]) if past.read else None,
        newest_passed_drill=_drill(passed[-1]) if passed else None,
        listed=_oldest_check(restorable, checks, Depth.LISTED),
        read=_oldest_check(restorable, checks, Depth.READ),
        copies=tuple(_copy(instance, name) for name in sorted(instance.copies)),
        lock=_lock(repository, stored.provenance.trusted(stored.backups), restorable)
        if objectives.immutable_for is not None
        else None,
        restore_seconds=restore_seconds(drills.timings(passed), _sizes(stored, restorable)),
        exchanges=_exchanges(instance) if instance.is_own_repository else (),
        stopped=_stopped_server(instance) if instance.is_own_repository else None,
        full=find_full_volume(instance) if instance.is_own_repository else None,
        lacks_agent=instance.is_own_repository and lacks_agent(instance.settings.agent, instance.host),
        is_machine=instance.settings.vm is not None,
    )


def _exchanges(instance: Instance) -> tuple[ExchangeFact, ...]:
    """Return the unfinished restores that replace the server. The module is imported here, as it is rarely used."""
    if not journal.tops(instance.restores):
        return ()
    from zsnapdb.jobs.steps import restore_journal

    return restore_journal.under_way(instance)


def _stopped_server(instance: Instance) -> StoppedServer | None:
    """Return the instance's server on this host if it is stopped; None if it runs or no backup recorded it."""
    if not (instance.host.services / f"{instance.name}.json").exists():
        return None
    from zsnapdb.jobs.record.server_unit_record import stopped_server

    return stopped_server(instance)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _doubts(stored: Stored, past: PastDrills) -> tuple[str, ...]:
    shown, more = past.unreadable[: -_NAMED - 1 : -1], len(past.unreadable) - _NAMED
    return (
        *(
            f"the repository lacks the evidence of drill {drill_id} of this host: deleted, hidden, or rolled back"
            for drill_id in past.missing
        ),
        *(damage.describe() for damage in stored.damage.known if damage.name in stored.present),
        *(finding.text for finding in stored.missing if finding.is_doubtful),
        *(f"the evidence of drill {drill_id} does not count: damaged, or foreign" for drill_id in shown),
        *([f"the evidence of {more} other drills does not count: damaged, or foreign"] if more > 0 else ()),
    )


def _drill(evidence: Evidence) -> DrillFact:
    return DrillFact(evidence.drill_id, evidence.backup_id, evidence.finished, evidence.outcome is Outcome.PASSED)


def _oldest_check(restorable: Sequence[Summary], checks: Checks, depth: Depth) -> CheckFact | None:
    """Return the restorable backup whose last check at the given depth, or deeper, was the longest time ago."""
    checked = []
    for backup in restorable:
        when = checks.whole_since(backup.backup_id, depth)
        checked.append(CheckFact(backup.backup_id, when or backup_time(backup.backup_id), when is not None))
    return min(checked, key=lambda fact: fact.since, default=None)


def _copy(instance: Instance, name: str) -> CopyFact:
    other = instance.in_repository(name, instance.copies[name])
    try:
        newest = read(other, other.open_repository()).newest_point
    except ZsnapdbError as error:
        return CopyFact(name, None, error.message)
    return CopyFact(name, _moment(newest) if newest is not None else None)


def _lock(repository: Repository, backups: Sequence[Summary], restorable: Sequence[Summary]) -> LockFact | None:
    """Return the time until which object locks protect the newest restorable backup.

    For each backup in its chain, the locks of the manifest and of each volume's first chunk are read. The earliest end
    of a lock is returned, because a restore needs the whole chain.
    """
    if not restorable:
        return None
    newest = restorable[-1]
    made, until = backup_time(newest.backup_id), None
    for backup in restore_chain(backups, newest):
        first = (layout.chunk(backup.instance, backup.backup_id, volume.role, 1) for volume in backup.volumes)
        keys: list[Key] = [layout.manifest(backup.instance, backup.backup_id), *first]
        for key in keys:
            hold = repository.hold(key)
            if hold is None:
                return LockFact(newest.backup_id, made, None, str(key))
            if hold.until is not None:
                until = hold.until if until is None else min(until, hold.until)
    return LockFact(newest.backup_id, made, until)


def _sizes(stored: Stored, restorable: Sequence[Summary]) -> Mapping[str, int]:
    """Return the number of bytes that a restore to the newest point receives and replays, by kind of step."""
    if not restorable:
        return {}
    chain = restore_chain(stored.provenance.trusted(stored.backups), restorable[-1])
    received = sum(volume.plain_size for backup in chain for volume in backup.volumes)
    routes = {route.point.backup_id: route for route in stored.window.routes}
    route = routes.get(restorable[-1].backup_id)
    replayed = sum(file.end for file in route.files) - route.start if route is not None and route.files else 0
    return {"receive": received, "replay": max(0, replayed)}


_SUFFIX = ".prom"


def check_name(file: Path) -> None:
    """Raise UsageError if node_exporter would not read a file with the given name."""
    if file.suffix != _SUFFIX:
        raise UsageError(f"{file}: node_exporter reads only files that end in {_SUFFIX}", hint=f"name it *{_SUFFIX}")


def write(file: Path, text: str) -> None:
    """Replace the file atomically with the text. A reader sees either the complete old file or the complete new file.

    If the path is a link, the link itself is replaced. Raises ZsnapdbError if the folder cannot be written.
    """
    try:
        files.replace(file, text.encode(), 0o644)
    except OSError as error:
        raise ZsnapdbError(
            f"writing the metrics to {file}: {error.strerror}",
            hint="name a file in the folder of node_exporter's textfile collector, which must exist",
        ) from error
