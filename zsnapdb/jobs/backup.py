"""A backup: probe, preflight, lock, snapshot set, unlock, proof, hold, send, manifest, bookmark, release."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zsnapdb import __version__
from zsnapdb.errors import DamagedError, NotThere, ZsnapdbError
from zsnapdb.jobs.applier import start_forgotten
from zsnapdb.jobs.common import (
    REPOSITORY_PROPERTY,
    STATE_PROPERTY,
    STORED,
    Instance,
    Report,
    Tell,
    exclusive,
    fresh_backup_id,
    now,
    undone_on_error,
    unfinished,
)
from zsnapdb.jobs.courtesy import stepped_back
from zsnapdb.jobs.observe import KEPT_PROPERTIES, Observed, observe
from zsnapdb.jobs.snapshot import Taken, take
from zsnapdb.model import Progress, Snapshot
from zsnapdb.mysql.paths import absolute_tablespaces
from zsnapdb.planning import fitness
from zsnapdb.planning.chain import BasePlan, choose_base
from zsnapdb.planning.identity import RECORDED
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.confirm import confirm
from zsnapdb.repository.keyring import DataKey
from zsnapdb.repository.manifest import ChannelPart, LockPart, Manifest, PositionPart, ServerPart, VolumePart, chunk_row
from zsnapdb.repository.repository import Repository
from zsnapdb.store.open import open_store
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.upload import upload
from zsnapdb.zfs import datasets, snapshots, version
from zsnapdb.zfs.streams import SendStream, estimate


@dataclass(frozen=True)
class BackupPlan:
    """What a backup would do: what was found, the lock and its deadline in seconds, the hooks, the base, with reasons."""

    observed: Observed
    hooks: tuple[str, ...]
    deadline: float
    base: BasePlan[Summary]


@dataclass(frozen=True)
class BackupResult:
    """A backup that is in the repository, and how long its parts took, in seconds."""

    manifest: Manifest
    snapshot_seconds: float
    send_seconds: float
    warnings: tuple[str, ...]


def plan(instance: Instance, observed: Observed, repository: Repository | None) -> BackupPlan:
    """Return what a backup would do now. Reads the repository and the local snapshots; changes nothing."""
    known = instance.summaries(repository) if repository is not None else Summaries((), {})
    damaged = (fitness.warning("repository", f"{error.message}; its backup is passed over", error.hint) for error in known.unreadable.values())
    hooks = tuple(hook.describe() for hook in instance.hooks())
    base = choose_base(known.backups, _local_guids(instance), instance.send_flags())
    return BackupPlan(replace(observed, findings=(*observed.findings, *damaged)), hooks, instance.settings.lock.deadline, base)


def plan_now(instance: Instance) -> BackupPlan:
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
    return plan(instance, observed, repository)


def _local_guids(instance: Instance) -> dict[str, dict[int, str]]:
    """Return, per role, what an increment could start from: snapshot or bookmark by GUID, snapshots preferred."""
    found: dict[str, dict[int, str]] = {}
    for role, dataset in instance.volumes.items():
        known = snapshots.bookmarks(dataset)
        known.update(snapshots.by_guid(dataset))
        found[role] = known
    return found


def backup(instance: Instance, report: Report, tell: Tell) -> BackupResult:
    """Back the instance up. Afterwards the backup is in the repository, proved, and can be the base of the next one."""
    with exclusive(f"backup-{instance.name}", doing=f"backing up instance {instance.name}"):
        return _backup(instance, report, tell)


def _backup(instance: Instance, report: Report, tell: Tell) -> BackupResult:
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        tell(text)

    with instance.session() as session:
        started_again = start_forgotten(instance, session)
        if started_again is not None:
            note(started_again)
        with stepped_back():
            observed = observe(instance, session)
        instance = instance.with_volumes(observed.volumes)
        repository = instance.open_or_create_repository()
        unsettled = settle_unfinished(instance, repository)
        planned = plan(instance, observed, repository)
        chosen = planned.base
        local = _local_guids(instance)
        started = time.monotonic()
        taken = take(instance, observed, session, fresh_backup_id(), note)
        snapshotted = time.monotonic()
    key = repository.keyring.new_key("1") if repository.keyring.is_encrypting else None
    made = [s.full_name for s in taken.set.snapshots.values()]
    with stepped_back(), undone_on_error(lambda: snapshots.destroy_made(made, taken.set.backup_id)):
        volumes = tuple(
            _send(instance, observed, repository, taken, role, snapshot, _base_name(chosen, role, local), key, report)
            for role, snapshot in sorted(taken.set.snapshots.items())
        )
        manifest = _manifest(instance, observed, repository, taken, volumes, key)
    # From here on the backup may exist whatever happens to us; the next run looks, and finishes or removes.
    repository.commit(manifest)
    _make_base([s.full_name for s in taken.set.snapshots.values()], repository)
    return BackupResult(manifest, snapshotted - started, time.monotonic() - snapshotted, (*planned.observed.warnings, *unsettled, *told))


def settle_unfinished(instance: Instance, repository: Repository) -> list[str]:
    """Settle what interrupted backups left: a set whose manifest exists becomes a base, any other is removed.

    Only with the instance's lock held: a running backup's set looks the same. What cannot be removed (somebody else
    holds or cloned it) does not stop a backup; it is returned as warnings.
    """
    stored = set(repository.backup_ids(instance.name))
    warnings = []
    for backup_id, names in unfinished(instance).items():
        try:
            if backup_id in stored:
                _make_base(names, repository)
            else:
                snapshots.destroy_made(names, backup_id)
        except ZsnapdbError as error:
            warnings.append(f"snapshots of the interrupted backup {backup_id} could not be removed: {error.message}")
    return warnings


def _base_name(chosen: BasePlan[Summary], role: str, local: dict[str, dict[int, str]]) -> str | None:
    volume = chosen.base.volume(role) if chosen.base is not None else None
    return local[role][volume.guid] if volume is not None else None


def _send(
    instance: Instance,
    observed: Observed,
    repository: Repository,
    taken: Taken,
    role: str,
    snapshot: Snapshot,
    base: str | None,
    key: DataKey | None,
    report: Report,
) -> VolumePart:
    """Send one volume. Afterwards all its chunks are stored, the stream's END was seen and `zfs send` ended well."""
    flags = instance.send_flags()
    total = estimate(snapshot.full_name, base, flags)
    chunks = repository.chunks(instance.name, taken.set.backup_id, role)
    settings = instance.upload_settings()
    cipher = ChunkCipher(key.secret, key.part.id) if key is not None else None
    with SendStream(snapshot.full_name, base, flags) as stream:
        try:
            stored = upload(stream.pipe, chunks, settings, lambda done: report(Progress(f"send {role}", done, total)), cipher=cipher)
        except DamagedError:
            # What `zfs send` says of its own death is the better story.
            stream.raise_its_own_error()
            raise
        stream.finish()
    confirm(chunks, stored.chunks)
    wanted_base = datasets.guid(base) if base else 0
    if (stored.begin.to_guid, stored.begin.from_guid) != (snapshot.guid, wanted_base):
        raise DamagedError(
            f"the stream of {snapshot.full_name} leads from GUID {stored.begin.from_guid} to {stored.begin.to_guid}, "
            f"expected from {wanted_base} to {snapshot.guid}",
            hint="was the snapshot renamed or replaced during the backup? run it again",
        )
    kept = {name: found.value for name, found in datasets.properties(snapshot.dataset, KEPT_PROPERTIES).items() if found.value != datasets.UNSET}
    return VolumePart(
        role=role,
        dataset=snapshot.dataset,
        snapshot=snapshot.name,
        guid=snapshot.guid,
        from_guid=wanted_base or None,
        send_flags=flags,
        features=stored.begin.features,
        mountpoint=observed.mountpoints[role],
        properties=kept,
        codec=settings.codec,
        plain_size=stored.plain_size,
        sha256=stored.sha256,
        chunks=tuple(map(chunk_row, stored.chunks)),
    )


def _manifest(instance: Instance, observed: Observed, repository: Repository, taken: Taken, volumes: Sequence[VolumePart], key: DataKey | None) -> Manifest:
    facts = observed.facts
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
        keys=(key.part,) if key is not None else (),
        volumes=tuple(volumes),
    )


def _make_base(names: Sequence[str], repository: Repository) -> None:
    """After the manifest is read back: bookmark each snapshot as a next base, let its hold go, mark the set as stored."""
    for snapshot in snapshots.describe(names):
        snapshots.bookmark(snapshot)
    snapshots.release(names)
    snapshots.set_on(names, {STATE_PROPERTY: STORED, REPOSITORY_PROPERTY: repository.id})
