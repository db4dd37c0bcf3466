"""A backup: finish what was interrupted; observe, hold, snapshot set, prove; journal, send, manifest, base, release."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from zsnapdb import __version__
from zsnapdb.errors import CommandError, ConsistencyError, DamagedError, NotThere
from zsnapdb.jobs.backup import resume as interrupted
from zsnapdb.jobs.backup.low_priority import stepped_back
from zsnapdb.jobs.backup.resume import Found
from zsnapdb.jobs.backup.send import Sender, protect
from zsnapdb.jobs.backup.snapshot_set import take
from zsnapdb.jobs.backup.source import Observation, SourceDescription, SourceOpener
from zsnapdb.jobs.backup.sources import open_source
from zsnapdb.jobs.events import KeptWarnings
from zsnapdb.jobs.exclusion import exclusive
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import Snapshot, SnapshotSet, pool_of
from zsnapdb.planning.backup import fitness
from zsnapdb.planning.backup.resume import Because, Judgement, ResumeDecision
from zsnapdb.planning.chain import BasePlan, choose_base
from zsnapdb.repository.backup_journal import BackupJournal, Begun, StreamFormat, VolumeBegun
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.manifest import Manifest, SourcePart, VolumeType
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.unfinished import remove
from zsnapdb.repository.writer_lease import WriterLease, lease
from zsnapdb.zfs import owned, snapshots, version


@dataclass(frozen=True)
class BackupPlan:
    """What a backup would do: what becomes of interrupted ones, what was found, the lock and its deadline in seconds, the hooks, the base, with reasons."""

    observed: Observation
    hooks: tuple[str, ...]
    deadline: float
    base: BasePlan[Summary]
    interrupted: tuple[Found, ...] = ()


@dataclass(frozen=True)
class BackupResult:
    """A backup that is in the repository, how long its parts took, in seconds, and interrupted ones that were finished before it."""

    manifest: Manifest
    snapshot_seconds: float
    send_seconds: float
    warnings: tuple[str, ...]
    continued: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class _Asked:
    """What the run was asked: `full` for a full backup, `fresh` to give up what was interrupted; and who hears of it."""

    instance: Instance
    events: KeptWarnings
    full: bool
    fresh: bool
    opener: SourceOpener

    def note(self, text: str) -> None:
        """Warn, and keep it for the result."""
        self.events.warn(text)


def plan(
    instance: Instance, observed: Observation, repository: Repository | None, *, full: bool = False, fresh: bool = False
) -> BackupPlan:
    """Return what a backup would do now. Reads the repository and the local snapshots; changes nothing."""
    known = instance.summaries(repository) if repository is not None else Summaries((), {})
    damaged = (
        fitness.warning("repository", f"{error.message}; its backup is passed over", error.hint)
        for error in known.unreadable.values()
    )
    hooks = tuple(hook.describe() for hook in instance.hooks())
    base = choose_base(
        known.backups,
        _local_guids(instance),
        instance.send_flags(),
        now=instance.host.now(),
        policy=instance.chain_policy(),
        full=full,
    )
    found = tuple(interrupted.look(instance, repository, fresh=fresh)) if repository is not None else ()
    return BackupPlan(observed.with_findings(damaged), hooks, instance.settings.lock.deadline, base, found)


def plan_now(
    instance: Instance, *, full: bool = False, fresh: bool = False, opener: SourceOpener = open_source
) -> BackupPlan:
    """Look at source and repository and return what a backup would do now; changes nothing."""
    with opener(instance) as source:
        observed = source.observe()
    instance = instance.with_volumes(observed.volumes)
    try:
        repository = instance.open_repository()
    except NotThere:
        # The first backup makes the repository; a missing bucket is another matter and is asked for again here.
        instance.open_store()[0].check()
        repository = None
    return plan(instance, observed, repository, full=full, fresh=fresh)


def _local_guids(instance: Instance) -> dict[str, dict[int, str]]:
    """Return, per role, what an increment could start from: snapshot or bookmark by GUID, snapshots preferred."""
    found: dict[str, dict[int, str]] = {}
    for role, dataset in instance.volumes.items():
        known = snapshots.bookmarks(dataset)
        known.update(snapshots.by_guid(dataset))
        found[role] = known
    return found


def backup(
    instance: Instance,
    *,
    full: bool = False,
    fresh: bool = False,
    opener: SourceOpener = open_source,
) -> BackupResult:
    """Back the instance up. Afterwards the backup is in the repository, proved, and can be the base of the next one.

    What an earlier run of this host began and did not finish is finished first, from its own snapshots, unless `fresh`
    gives it up. If this run is interrupted after its snapshots were made, they stay held and the next run goes on with
    them.
    """
    events = KeptWarnings(instance.events)
    asked = _Asked(instance.with_events(events), events, full, fresh, opener)
    with exclusive(f"backup-{instance.name}", doing=f"backing up instance {instance.name}", folder=instance.host.run):
        continued = _finish_interrupted(asked)
        return replace(_backup(asked), continued=continued, warnings=tuple(events.warnings))


@contextlib.contextmanager
def _alone(asked: _Asked, repository: Repository) -> Iterator[WriterLease]:
    """Be the only writer of the instance's backups, on all hosts."""
    name, host = asked.instance.name, asked.instance.host
    with lease(
        repository, f"{name}/writer", doing=f"backing up {name}", tell=asked.note, has_ended=host.has_ended
    ) as held:
        yield held


def _finish_interrupted(asked: _Asked) -> tuple[Manifest, ...]:
    """Finish what earlier runs left.

    The server is not needed for it. One that fails for a reason of its own is given up; trouble with the store raises.
    """
    instance = asked.instance
    if not interrupted.is_any(instance):
        return ()
    repository = instance.open_or_create_repository()
    done = []
    with _alone(asked, repository) as held, stepped_back():
        found = interrupted.look(instance, repository, fresh=asked.fresh)
        for journal in interrupted.settle_all(instance, repository, found):
            asked.note(f"continuing backup {journal.begun.backup_id}, which was interrupted")
            journal.go_on()
            try:
                protect(journal.begun.snapshots())
                with _closed(journal):
                    done.append(Sender.of(instance, repository, journal, held, is_new=False).finish())
            except (CommandError, DamagedError, ConsistencyError) as error:
                failed = Judgement(ResumeDecision.GIVE_UP, Because.FAILED, f"it failed again: {error.message}")
                interrupted.give_up(instance, repository, Found(journal.begun.backup_id, journal.file, journal, failed))
    return tuple(done)


def _backup(asked: _Asked) -> BackupResult:
    instance = asked.instance
    with contextlib.ExitStack() as stack:
        with asked.opener(instance) as source:
            # What a killed run left on the source goes first.
            left = source.recover()
            if left is not None:
                asked.note(left)
            with stepped_back():
                # Is it fit, which volumes has it, who else writes, what will this backup be?
                observed = source.observe()
                instance = instance.with_volumes(observed.volumes)
                repository = instance.open_or_create_repository()
                held = stack.enter_context(_alone(asked, repository))
                interrupted.sweep(instance, repository)
                planned = plan(instance, observed, repository, full=asked.full)
            asked.events.warnings.extend(planned.observed.warnings)
            # Hold it still, one snapshot request, let it go, prove what was made.
            started = time.monotonic()
            taken = take(source, observed, instance.name, instance.host.new_backup_id(), asked.events)
            snapshotted = time.monotonic()
        with stepped_back(to_the_end=True):
            # Nobody waits any more: store the set.
            manifest = _store(
                asked, instance, lambda: source.describe(observed, taken.proof), planned, repository, taken.set, held
            )
    return BackupResult(manifest, snapshotted - started, time.monotonic() - snapshotted, ())


def _store(
    asked: _Asked,
    instance: Instance,
    describe: Callable[[], SourceDescription],
    planned: BackupPlan,
    repository: Repository,
    made: SnapshotSet,
    held: WriterLease,
) -> Manifest:
    """Store a snapshot set that was just taken. Without a journal to continue by, nothing stays of it on an error."""
    backup_id = made.backup_id

    def no_journal(error: OSError) -> None:
        asked.note(
            f"the journal in {interrupted.folder(instance)} cannot be written ({error.strerror}): if this backup is"
            " interrupted it starts over"
        )

    names = [s.full_name for s in made.snapshots.values()]
    with undone_on_error(lambda: owned.destroy_set(names, backup_id)):
        begun = _begun(instance, describe(), repository, made, planned.base.base)
        protect(names)
        journal = BackupJournal.create(interrupted.folder(instance), begun, no_journal, instance.host.journal_disk)
    sender = Sender.of(instance, repository, journal, held, is_new=True)

    def undo() -> None:
        if not journal.is_durable and backup_id not in repository.backup_ids(instance.name):
            owned.destroy_set(names, backup_id)
            remove(repository, instance.name, backup_id)

    with undone_on_error(undo), _closed(journal):
        return sender.finish()


@contextlib.contextmanager
def _closed(journal: BackupJournal) -> Iterator[None]:
    """Close the journal at the end, and say of an error how the backup goes on."""
    try:
        yield
    except BaseException as error:
        if journal.is_durable:
            error.add_note(
                f"backup {journal.begun.backup_id} is unfinished; its snapshots are held, and the next `zsnapdb backup`"
                " continues it (--fresh gives it up)"
            )
        raise
    finally:
        journal.close()


def _begun(
    instance: Instance, described: SourceDescription, repository: Repository, made: SnapshotSet, base: Summary | None
) -> Begun:
    """Return all that is known of the backup before its streams are sent; a later run needs no more."""
    settings = instance.upload_settings()
    volumes = tuple(
        _volume(described.volumes[role], instance.send_flags(), role, snapshot, base)
        for role, snapshot in sorted(made.snapshots.items())
    )
    return Begun(
        draft=_draft(instance, described.source, repository, made),
        base=base.backup_id if base is not None else None,
        recipients=repository.keyring.recipients,
        cut=StreamFormat(
            chunk_size=settings.chunk_size, codec=settings.codec, level=settings.level, adaptive=settings.adaptive
        ),
        volumes=volumes,
    )


def _volume(
    kind: VolumeType, flags: tuple[str, ...], role: str, snapshot: Snapshot, base: Summary | None
) -> VolumeBegun:
    before = base.volume(role) if base is not None else None
    return VolumeBegun(
        role=role,
        dataset=snapshot.dataset,
        snapshot=snapshot.name,
        guid=snapshot.guid,
        from_guid=before.guid if before is not None else None,
        send_flags=flags,
        type=kind,
    )


def _draft(instance: Instance, source: SourcePart, repository: Repository, made: SnapshotSet) -> Manifest:
    pool = pool_of(next(iter(made.snapshots.values())).dataset)
    return Manifest(
        backup_id=made.backup_id,
        instance=instance.name,
        repository_id=repository.id,
        created=instance.host.now(),
        tool_version=__version__,
        zfs_version=version.userland(),
        pool_guid=version.pool_guid(pool),
        createtxg=made.createtxg,
        source=source,
        volumes=(),
    )
