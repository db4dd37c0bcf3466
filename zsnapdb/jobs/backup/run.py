"""A backup: finish what was interrupted, then probe, preflight, lock, snapshot set, unlock, proof, hold, journal, send, manifest, base, release."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from zsnapdb import __version__
from zsnapdb.errors import CommandError, ConsistencyError, DamagedError, NotThere
from zsnapdb.jobs.backup import resume as interrupted
from zsnapdb.jobs.backup.applier import start_forgotten
from zsnapdb.jobs.backup.low_priority import stepped_back
from zsnapdb.jobs.backup.preflight import KEPT_PROPERTIES, Observed, observe
from zsnapdb.jobs.backup.resume import Found
from zsnapdb.jobs.backup.send import Sender, protect
from zsnapdb.jobs.backup.snapshot import Taken, take
from zsnapdb.jobs.clock import fresh_backup_id, now
from zsnapdb.jobs.exclusion import exclusive
from zsnapdb.jobs.instance import Instance, Report, Tell
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import Snapshot
from zsnapdb.mysql.paths import absolute_tablespaces
from zsnapdb.planning.backup import fitness
from zsnapdb.planning.backup.resume import Because, Judgement, ResumeDecision
from zsnapdb.planning.chain import BasePlan, choose_base
from zsnapdb.planning.server_copy.identity import RECORDED
from zsnapdb.repository.backup_journal import BackupJournal, Begun, StreamFormat, VolumeBegun
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.manifest import (
    ChannelPart,
    FilesystemType,
    LockPart,
    Manifest,
    PositionPart,
    ServerPart,
    ServerSourcePart,
)
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.unfinished import remove
from zsnapdb.repository.writer_lease import WriterLease, lease
from zsnapdb.store.open import open_store
from zsnapdb.zfs import datasets, owned, snapshots, version


@dataclass(frozen=True)
class BackupPlan:
    """What a backup would do: what becomes of interrupted ones, what was found, the lock and its deadline in seconds, the hooks, the base, with reasons."""

    observed: Observed
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
    report: Report
    tell: Tell
    full: bool
    fresh: bool
    told: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Tell, and keep it for the result."""
        self.told.append(text)
        self.tell(text)


def plan(
    instance: Instance, observed: Observed, repository: Repository | None, *, full: bool = False, fresh: bool = False
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
        now=now(),
        policy=instance.chain_policy(),
        full=full,
    )
    found = tuple(interrupted.look(instance, repository, fresh=fresh)) if repository is not None else ()
    return BackupPlan(
        replace(observed, findings=(*observed.findings, *damaged)), hooks, instance.settings.lock.deadline, base, found
    )


def plan_now(instance: Instance, *, full: bool = False, fresh: bool = False) -> BackupPlan:
    """Look at server and repository and return what a backup would do now; changes nothing."""
    with instance.session() as session:
        observed = observe(instance, session)
    instance = instance.with_volumes(observed.volumes)
    try:
        repository = instance.open_repository()
    except NotThere:
        # The first backup makes the repository; a missing bucket is another matter and is asked for again here.
        open_store(instance.repository)[0].check()
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


def backup(instance: Instance, report: Report, tell: Tell, *, full: bool = False, fresh: bool = False) -> BackupResult:
    """Back the instance up. Afterwards the backup is in the repository, proved, and can be the base of the next one.

    What an earlier run of this host began and did not finish is finished first, from its own snapshots, unless `fresh`
    gives it up. If this run is interrupted after its snapshots were made, they stay held and the next run goes on with
    them.
    """
    asked = _Asked(instance, report, tell, full, fresh)
    with exclusive(f"backup-{instance.name}", doing=f"backing up instance {instance.name}"):
        continued = _finish_interrupted(asked)
        return replace(_backup(asked), continued=continued, warnings=tuple(asked.told))


@contextlib.contextmanager
def _alone(asked: _Asked, repository: Repository) -> Iterator[WriterLease]:
    """Be the only writer of the instance's backups, on all hosts."""
    name = asked.instance.name
    with lease(repository, f"{name}/writer", doing=f"backing up {name}", tell=asked.note) as held:
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
        for journal in interrupted.settle_all(instance, repository, found, asked.note):
            asked.note(f"continuing backup {journal.begun.backup_id}, which was interrupted")
            journal.go_on()
            try:
                protect(journal.begun.snapshots())
                with _closed(journal):
                    done.append(Sender.of(instance, repository, journal, held, asked.report, is_new=False).finish())
            except (CommandError, DamagedError, ConsistencyError) as error:
                failed = Judgement(ResumeDecision.GIVE_UP, Because.FAILED, f"it failed again: {error.message}")
                interrupted.give_up(
                    instance, repository, Found(journal.begun.backup_id, journal.file, journal, failed), asked.note
                )
    return tuple(done)


def _backup(asked: _Asked) -> BackupResult:
    instance = asked.instance
    with contextlib.ExitStack() as stack:
        with instance.session() as session:
            started_again = start_forgotten(instance, session)
            if started_again is not None:
                asked.note(started_again)
            with stepped_back():
                observed = observe(instance, session)
                instance = instance.with_volumes(observed.volumes)
                repository = instance.open_or_create_repository()
                held = stack.enter_context(_alone(asked, repository))
                interrupted.sweep(instance, repository, asked.note)
                planned = plan(instance, observed, repository, full=asked.full)
            asked.told.extend(planned.observed.warnings)
            started = time.monotonic()
            taken = take(instance, observed, session, fresh_backup_id(), asked.note)
            snapshotted = time.monotonic()
        with stepped_back(to_the_end=True):
            manifest = _store(asked, instance, observed, planned, repository, taken, held)
    return BackupResult(manifest, snapshotted - started, time.monotonic() - snapshotted, ())


def _store(
    asked: _Asked,
    instance: Instance,
    observed: Observed,
    planned: BackupPlan,
    repository: Repository,
    taken: Taken,
    held: WriterLease,
) -> Manifest:
    """Store a snapshot set that was just taken. Without a journal to continue by, nothing stays of it on an error."""
    backup_id = taken.set.backup_id

    def no_journal(error: OSError) -> None:
        asked.note(
            f"the journal in {interrupted.folder(instance)} cannot be written ({error.strerror}): if this backup is"
            " interrupted it starts over"
        )

    names = [s.full_name for s in taken.set.snapshots.values()]
    with undone_on_error(lambda: owned.destroy_set(names, backup_id)):
        begun = _begun(instance, observed, repository, taken, planned.base.base)
        protect(names)
        journal = BackupJournal.create(interrupted.folder(instance), begun, no_journal)
    sender = Sender.of(instance, repository, journal, held, asked.report, is_new=True)

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


def _begun(instance: Instance, observed: Observed, repository: Repository, taken: Taken, base: Summary | None) -> Begun:
    """Return all that is known of the backup before its streams are sent; a later run needs no more."""
    settings = instance.upload_settings()
    volumes = tuple(
        _volume(observed, instance.send_flags(), role, snapshot, base)
        for role, snapshot in sorted(taken.set.snapshots.items())
    )
    return Begun(
        draft=_draft(instance, observed, repository, taken),
        base=base.backup_id if base is not None else None,
        recipients=repository.keyring.recipients,
        cut=StreamFormat(
            chunk_size=settings.chunk_size, codec=settings.codec, level=settings.level, adaptive=settings.adaptive
        ),
        volumes=volumes,
    )


def _volume(
    observed: Observed, flags: tuple[str, ...], role: str, snapshot: Snapshot, base: Summary | None
) -> VolumeBegun:
    before = base.volume(role) if base is not None else None
    return VolumeBegun(
        role=role,
        dataset=snapshot.dataset,
        snapshot=snapshot.name,
        guid=snapshot.guid,
        from_guid=before.guid if before is not None else None,
        send_flags=flags,
        type=FilesystemType(mountpoint=observed.mountpoints[role], properties=_kept_properties(snapshot.dataset)),
    )


def _kept_properties(dataset: str) -> dict[str, str]:
    return {
        name: found.value
        for name, found in datasets.properties(dataset, KEPT_PROPERTIES).items()
        if found.value != datasets.UNSET
    }


def _draft(instance: Instance, observed: Observed, repository: Repository, taken: Taken) -> Manifest:
    pool = next(iter(observed.volumes.values())).split("/", 1)[0]
    return Manifest(
        backup_id=taken.set.backup_id,
        instance=instance.name,
        repository_id=repository.id,
        created=now(),
        tool_version=__version__,
        zfs_version=version.userland(),
        pool_guid=version.pool_guid(pool),
        createtxg=taken.set.createtxg,
        source=_source(observed, taken),
        volumes=(),
    )


def _source(observed: Observed, taken: Taken) -> ServerSourcePart:
    facts = observed.facts
    return ServerSourcePart(
        position=PositionPart.of(taken.position),
        lock=LockPart(strategy=taken.choice.name, reason=taken.choice.reason, held_ms=round(taken.held_ms, 3)),
        channels=tuple(ChannelPart.of(channel) for channel in taken.channels),
        server=ServerPart(
            flavour=facts.flavour,
            version=facts.version,
            server_uuid=facts.server_uuid,
            server_id=facts.server_id,
            variables={name: facts.variables[name] for name in RECORDED if name in facts.variables},
            absolute_tablespaces=absolute_tablespaces(facts),
        ),
    )
