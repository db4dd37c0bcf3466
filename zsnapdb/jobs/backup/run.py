"""`zsnapdb backup`: finish interrupted backups, then make a new one.

`_make_backup` calls the phases of a backup in order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from zsnapdb.base.domain_types import SnapshotSet, pool_of
from zsnapdb.base.errors import (
    BusyError,
    CommandError,
    CommandTimeout,
    ConsistencyError,
    DamagedError,
    NotFound,
    PreflightError,
    UnreachableError,
)
from zsnapdb.jobs.backup import local_snapshot, send
from zsnapdb.jobs.backup import resume as interrupted
from zsnapdb.jobs.backup.hooks import DoneHooks
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.plan import BackupPlan, plan, refuse_clear
from zsnapdb.jobs.backup.resume import InterruptedBackup
from zsnapdb.jobs.backup.send import Sender, protect, started_backup
from zsnapdb.jobs.backup.server_source import open_source
from zsnapdb.jobs.backup.source_interface import SourceDescription, SourceOpener, take
from zsnapdb.jobs.backup.store_local_set import (
    OutageSnapshot,
    kept_on_error,
    open_set,
    snapshot_during_outage,
    store_is_away,
    wait_for_store,
)
from zsnapdb.jobs.base.events import KeptWarnings, undone_on_error
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import is_at_work, lock_instance, lock_server_work
from zsnapdb.jobs.base.snapshot_set_properties import BASE_TAG
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.idempotency_records import Action, OnceRecord, OnceRecords
from zsnapdb.planning.backup.resume import Cause, ResumeDecision, ResumeJudgement
from zsnapdb.repository.backup_journal import DISK, BackupJournal
from zsnapdb.repository.backup_marks import remove_mark
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import WriterLease, lease
from zsnapdb.zfs import destruction, holds, version

_CLOCKS = timedelta(minutes=5)
"""The maximum tolerated difference between the clocks of two hosts."""
_PATIENCE = 10.0
"""The time in seconds for which the run retries requests to an unreachable store before it creates the snapshots."""


def backup_of_run(instance: Instance) -> Manifest | None:
    """Return the stored backup of the run with this id; None if there is none, or if no repository exists yet.

    A backup with a time in the future is ignored. Such a backup was made while the clock was ahead. So it may have the
    id of a run that is not yet due. This host records the first search for a run, so that later searches ignore the
    same backup.

    Raises:
        RepositoryError: the store cannot be read.
    """
    run = instance.host.run_id()
    try:
        record = _begun(instance, run)
        repository = instance.open_repository()
        made = [one for one in host_backup_record.trusted_backups(instance, repository) if one.run_id == run]
        early = record.aim if record is not None else ()
        if record is not None and OnceRecords(instance.host).began_early(record):
            early = tuple(one.backup_id for one in made)
            _begun(instance, run, early)
        latest = instance.host.now() + _CLOCKS
        own = next((one for one in made if one.created <= latest and one.backup_id not in early), None)
        return repository.manifest(instance.name, own.backup_id) if own is not None else None
    except NotFound:
        return None


def _begun(instance: Instance, run: str, early: tuple[str, ...] | None = None) -> OnceRecord | None:
    """Return this host's record of the run.

    Return None if the record cannot be read or written, or if another command wrote it.

    A missing record is created. The argument `early` lists the backups that got the run's id while the clock was ahead.
    With `early`, the record is replaced by a new one that names these backups.
    """
    records, known = OnceRecords(instance.host), None
    with contextlib.suppress(DamagedError, PreflightError):
        known = records.read(run)
        if known is None or early is not None:
            known = records.begin(run, Action("backup", instance.name, early or ()))
    return known if known is not None and known.verb == "backup" else None


def stored_if_known(instance: Instance) -> Manifest | None:
    """Return the result of `backup_of_run`, for the check before the run starts.

    Also return None if the store does not answer, because the run asks the store again later.
    """
    with contextlib.suppress(UnreachableError):
        return backup_of_run(instance.impatient(_PATIENCE))
    return None


@contextlib.contextmanager
def hinting(instance: Instance) -> Iterator[None]:
    """Run the block. If another run is in progress, the error's hint says to repeat the command with the same id."""
    try:
        yield
    except BusyError as error:
        own = instance.host.run_id()
        raise BusyError(
            error.message, hint=f"repeat the command with `--once {own}`: it makes a backup only if run {own} made none"
        ) from error


@dataclass(frozen=True)
class BackupResult:
    """A backup in the repository, and the durations of its snapshot and its transfer in seconds.

    The list `continued` contains the interrupted backups that this run finished first. If `is_repeat` is set, this
    command made no new backup: an earlier run with the same id had begun the returned backup.
    """

    manifest: Manifest
    snapshot_seconds: float
    send_seconds: float
    warnings: tuple[str, ...]
    continued: tuple[Manifest, ...] = ()
    is_repeat: bool = False


@dataclass(frozen=True)
class _BackupRequest:
    """The request of one run. The flag `full` requests a full backup, and `fresh` abandons interrupted backups.

    With `once`, no backup is made if the run with this id already has a backup.
    """

    instance: Instance
    events: KeptWarnings
    full: bool
    fresh: bool
    once: bool
    opener: SourceOpener
    done: DoneHooks

    def warn(self, text: str) -> None:
        """Report a warning, and add it to the result."""
        self.events.warn(text)


def backup(
    instance: Instance,
    *,
    full: bool = False,
    fresh: bool = False,
    once: bool = False,
    opener: SourceOpener = open_source,
) -> BackupResult:
    """Make and store a proved backup of the instance. The backup can be the base of the next one.

    First, the run finishes this host's unfinished backups from their own snapshots. With `fresh`, it abandons these
    unfinished backups instead. If this run is interrupted after its snapshots were created, the snapshots remain held,
    and the next run continues the backup. At the end the `done` hooks run, whether the backup succeeded or failed. No
    lock is held while the hooks run.

    If the store is unreachable and this host stored a backup of the instance earlier, the snapshots are created anyway.
    They are stored when the store is reachable again. With `once`, no backup is made if the run with this id already
    began a backup and this backup is now stored. The stored backup is returned instead.

    Raises:
        UnreachableError: the store is unreachable for the repository's `patience`; the snapshots are kept.
    """
    events = KeptWarnings(instance.events)
    done = DoneHooks(instance.name, instance.hooks(), events)
    request = _BackupRequest(instance.with_events(events), events, full, fresh, once, opener, done)
    known = stored_if_known(instance) if once else None
    # If a run was killed after it wrote the manifest, its journal still exists. Its backup is finished below, unless
    # another run is in progress.
    if known is not None and (not interrupted.is_any(instance) or is_at_work(instance, "backup")):
        return BackupResult(known, 0.0, 0.0, (), is_repeat=True)
    with done.at_the_end(), _alone(request):
        outage = store_is_away(request.instance)
        if outage is None:
            continued = _finish_interrupted(request)
            result = _made_before(request) or _make_backup(request)
        else:
            early = snapshot_during_outage(request.instance, events, opener, done, outage)
            with kept_on_error(early):
                wait_for_store(request.instance, events, early, outage)
                continued = _finish_interrupted(request)
                before = _made_before(request)
            result = _kept_local(early, before) if before is not None else _store_early(request, early)
    return replace(result, continued=_others(continued, result), warnings=tuple(events.warnings))


def backup_local_set(
    instance: Instance, requested: str, *, full: bool = False, fresh: bool = False, once: bool = False
) -> BackupResult:
    """Make a backup from a snapshot set that `zsnapdb snapshot` created.

    The set is requested by its id, or as `latest` for the newest set. The source is not queried. If the backup fails,
    the set still exists. In all other respects, this function works like `backup`.

    Raises:
        NotFound: this host has no such set.
    """
    events = KeptWarnings(instance.events)
    done = DoneHooks(instance.name, instance.hooks(), events)
    request = _BackupRequest(instance.with_events(events), events, full, fresh, once, open_source, done)
    with done.at_the_end(), _alone(request):
        before = _made_before(request)
        if before is not None:
            return before
        early = open_set(request.instance, requested)
        done.begins(early.set.backup_id, early.observed.volumes)
        with kept_on_error(early):
            continued = _finish_interrupted(request)
            before = _made_before(request)
        result = _kept_local(early, before) if before is not None else _store_early(request, early)
    return replace(result, continued=_others(continued, result), warnings=tuple(events.warnings))


@contextlib.contextmanager
def _alone(request: _BackupRequest) -> Iterator[None]:
    """Take this host's lock for backups of the instance.

    Raises:
        BusyError: another run is in progress.
    """
    with contextlib.ExitStack() as stack:
        if request.once:
            stack.enter_context(hinting(request.instance))
        stack.enter_context(lock_instance(request.instance, "backup", "backing up"))
        yield


def _made_before(request: _BackupRequest) -> BackupResult | None:
    """Return the stored backup that the run with this id began, if `once` is set; else None."""
    manifest = backup_of_run(request.instance) if request.once else None
    return BackupResult(manifest, 0.0, 0.0, (), is_repeat=True) if manifest is not None else None


def _kept_local(early: OutageSnapshot, before: BackupResult) -> BackupResult:
    """Turn the new set into a local set, because the run with this id already has a backup. Return that backup."""
    holds.release(early.names, BASE_TAG)
    return before


def _others(continued: tuple[Manifest, ...], result: BackupResult) -> tuple[Manifest, ...]:
    """Return the interrupted backups that this run finished, except the backup in the result."""
    return tuple(one for one in continued if one.backup_id != result.manifest.backup_id)


def _make_backup(request: _BackupRequest) -> BackupResult:
    """Make one new backup. The numbered comments name the phases of the backup."""
    instance = request.instance
    with contextlib.ExitStack() as until_stored:
        with request.opener(instance) as source:
            # 1. Recover: undo changes of a killed run to the source, such as a stopped applier.
            with lock_server_work(instance):
                recovered = source.recover()
            if recovered is not None:
                request.warn(recovered)

            with at_low_priority():
                # 2. Observe: check that the source is fit for a backup, and find the volumes.
                observed = source.observe()
                instance = instance.with_volumes(observed.volumes)
                refuse_clear(instance, observed)

                # 3. Exclude other runs: become the only writer of the instance's backups, on all hosts.
                repository = instance.open_or_create_repository()
                writer = until_stored.enter_context(_only_writer(request, repository))

                # 4. Sweep: settle the snapshot sets that earlier runs left without a journal.
                known = instance.summaries(repository)
                seen = interrupted.sweep(instance, repository, known)

                # 5. Plan: a full backup, or an increment and its base.
                planned = plan(instance, observed, repository, known, full=request.full, seen=seen)
                host_backup_record.note_digests(instance, repository, planned.provenance, known.backups)
            request.events.warnings.extend(planned.observed.warnings)

            # 6. Snapshot: hold the source, create all snapshots in one request, release the source, prove the set.
            started = time.monotonic()
            backup_id = instance.host.new_backup_id()
            request.done.begins(backup_id, observed.volumes)
            to_hold = send.may_hold_base(instance, planned.to_hold, {one.snapshot.full_name for one in seen})
            until_stored.enter_context(undone_on_error(lambda: holds.release(to_hold, BASE_TAG)))
            with lock_server_work(instance):
                run_id = instance.host.run_id()
                taken = take(source, observed, instance.name, backup_id, request.events, run_id=run_id, bases=to_hold)
            snapshotted = time.monotonic()

        # The source is released and closed, so no process waits for this run now.
        with at_low_priority(may_stay_low=True):
            pool = pool_of(next(iter(taken.set.snapshots.values())).dataset)
            host_backup_record.note_turn(instance, repository, taken.set, version.pool_guid(pool))

            # 7. Journal: record the facts that a later run needs in order to continue this backup.
            journal = _write_journal(
                request, instance, lambda: source.describe(observed, taken.proof), planned, repository, taken.set
            )

            # 8. Store: send every volume, store and confirm its chunks, commit the manifest, keep the set as a base. If
            # the base's snapshot was destroyed meanwhile, send from its bookmark if that still exists.
            bases = planned.sent_from if taken.holds_bases else None
            manifest = _store(instance, repository, journal, writer, bases=bases)
    return BackupResult(manifest, snapshotted - started, time.monotonic() - snapshotted, ())


def _store_early(request: _BackupRequest, early: OutageSnapshot) -> BackupResult:
    """Store the set that was created while the store was unreachable. The other phases are those of `_make_backup`."""
    instance, started = early.instance, time.monotonic()
    with contextlib.ExitStack() as until_stored:
        with kept_on_error(early):
            refuse_clear(instance, early.observed)
            repository = instance.open_or_create_repository()
            writer = until_stored.enter_context(_only_writer(request, repository))
            with at_low_priority():
                known = instance.summaries(repository)
                seen = interrupted.sweep(instance, repository, known, early.names)
                planned = plan(
                    instance,
                    early.observed,
                    repository,
                    known,
                    full=request.full,
                    before=early.set.createtxg,
                    seen=seen,
                )
                host_backup_record.note_digests(instance, repository, planned.provenance, known.backups)
            request.events.warnings.extend(planned.observed.warnings)
            early.becomes_backup()
        with at_low_priority(may_stay_low=True):
            undo = early.stays_local
            with undone_on_error(undo):
                protect(early.names)
            journal = _write_journal(
                request, instance, lambda: early.described, planned, repository, early.set, early.created, undo
            )
            if journal.is_durable:
                local_snapshot.remove(instance, early.set.backup_id)
            manifest = _store(instance, repository, journal, writer, give_back=undo)
    return BackupResult(manifest, early.seconds, time.monotonic() - started, ())


def _finish_interrupted(request: _BackupRequest) -> tuple[Manifest, ...]:
    """Finish the unfinished backups of earlier runs. The database server is not needed for this.

    If the backup itself fails again, it is abandoned. If the store fails or a command times out, the error is raised,
    and a later run continues the backup.
    """
    instance = request.instance
    if not interrupted.is_any(instance):
        return ()
    repository = instance.open_or_create_repository()
    finished = []
    with _only_writer(request, repository) as writer, at_low_priority():
        backups = interrupted.look(instance, repository, fresh=request.fresh)
        for journal in interrupted.settle_all(instance, repository, backups):
            backup_id = journal.started.backup_id
            request.warn(f"continuing backup {backup_id}, which was interrupted")
            journal.go_on()
            try:
                with _closed(journal):
                    protect(journal.started.snapshots())
                    finished.append(Sender.of(instance, repository, journal, writer, is_new=False).finish())
            except CommandTimeout:
                raise
            except (CommandError, DamagedError, ConsistencyError) as error:
                failed = ResumeJudgement(ResumeDecision.GIVE_UP, Cause.FAILED, f"it failed again: {error.message}")
                interrupted.give_up(instance, repository, InterruptedBackup(backup_id, journal.file, journal, failed))
    return tuple(finished)


@contextlib.contextmanager
def _only_writer(request: _BackupRequest, repository: Repository) -> Iterator[WriterLease]:
    """Run the block while no other process on any host can write backups of the instance."""
    name, host = request.instance.name, request.instance.host
    with lease(
        repository,
        f"{name}/writer",
        doing=f"backing up {name}",
        tell=request.warn,
        has_ended=host.has_ended,
        patience=request.instance.wait,
    ) as writer:
        yield writer


def _write_journal(
    request: _BackupRequest,
    instance: Instance,
    describe: Callable[[], SourceDescription],
    planned: BackupPlan,
    repository: Repository,
    made: SnapshotSet,
    created: datetime | None = None,
    undo: Callable[[], None] | None = None,
) -> BackupJournal:
    """Write the journal of the new set. If that fails, call `undo`, or remove the snapshots if `undo` is None."""

    def warn_without_journal(error: OSError) -> None:
        request.warn(
            f"the journal in {interrupted.folder(instance)} cannot be written ({error.strerror}): if this backup is"
            " interrupted, the next backup starts over"
        )

    names = [s.full_name for s in made.snapshots.values()]
    with undone_on_error(undo or (lambda: destruction.destroy_set(names, made.backup_id))):
        started = started_backup(
            instance,
            describe(),
            repository,
            made,
            planned.base.base,
            created or instance.host.now(),
            planned.form.form,
            host_backup_record.next_sequence(instance, repository, planned.numbers),
            planned.sent_from,
        )
        folder, disk = interrupted.folder(instance), instance.host.journal_disk or DISK
        return BackupJournal.create(folder, started, warn_without_journal, disk)


def _store(
    instance: Instance,
    repository: Repository,
    journal: BackupJournal,
    writer: WriterLease,
    *,
    bases: Mapping[str, str] | None = None,
    give_back: Callable[[], None] | None = None,
) -> Manifest:
    """Store a new snapshot set. The mapping `bases` contains the base of each volume by role; this run holds the bases.

    If storing fails, the set is kept only if a later run can continue from the journal. Otherwise `give_back` is
    called, or the snapshots are removed.
    """
    started = journal.started
    sender = Sender.of(instance, repository, journal, writer, is_new=True, bases=bases)

    def undo() -> None:
        if not journal.is_durable and started.backup_id not in repository.backup_ids(instance.name):
            (give_back or (lambda: destruction.destroy_set(started.snapshots(), started.backup_id)))()
            remove_mark(repository, instance.name, started.backup_id)

    with undone_on_error(undo), _closed(journal):
        return sender.finish()


@contextlib.contextmanager
def _closed(journal: BackupJournal) -> Iterator[None]:
    """Close the journal after the block.

    If the block fails, the error gets a note: the next `zsnapdb backup` continues the backup.
    """
    try:
        yield
    except BaseException as error:
        if journal.is_durable:
            error.add_note(
                f"backup {journal.started.backup_id} is unfinished; its snapshots are held, and the next"
                " `zsnapdb backup` continues it (--fresh gives it up)"
            )
        raise
    finally:
        journal.close()
