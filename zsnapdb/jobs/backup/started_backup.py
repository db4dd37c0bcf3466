"""What the journal of a new backup begins with: all that a later run needs in order to continue the backup."""

from __future__ import annotations

from datetime import datetime

from zsnapdb import __version__
from zsnapdb.base.model import Snapshot, SnapshotSet, pool_of
from zsnapdb.jobs.backup.source import SourceDescription
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.backup.send_form import SEND_FLAGS, SendForm
from zsnapdb.repository.backup_journal import StartedBackup, StartedVolume, StreamFormat
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest, SourcePart, VolumeType
from zsnapdb.repository.objectives_part import ObjectivesPart
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.chunks import Codec
from zsnapdb.zfs import version


def started_backup(
    instance: Instance,
    described: SourceDescription,
    repository: Repository,
    made: SnapshotSet,
    base: Summary | None,
    created: datetime,
    form: SendForm,
    sequence: int,
) -> StartedBackup:
    """Return all that is known about the backup before its streams are sent. A later run needs nothing else."""
    settings = instance.upload_settings()
    # Blocks that the pool has compressed are not compressed again.
    codec = settings.codec if form is SendForm.PLAIN else Codec.NONE
    volumes = tuple(
        _volume(described.volumes[role], SEND_FLAGS[form], role, snapshot, base)
        for role, snapshot in sorted(made.snapshots.items())
    )
    return StartedBackup(
        draft=_draft(instance, described.source, repository, made, created, sequence),
        base=base.backup_id if base is not None else None,
        recipients=repository.keyring.recipients,
        cut=StreamFormat(
            chunk_size=settings.chunk_size,
            codec=codec,
            level=settings.level,
            adaptive=settings.adaptive,
            first_chunk=settings.first_chunk,
        ),
        volumes=volumes,
    )


def _volume(
    kind: VolumeType, flags: tuple[str, ...], role: str, snapshot: Snapshot, base: Summary | None
) -> StartedVolume:
    before = base.volume(role) if base is not None else None
    return StartedVolume(
        role=role,
        dataset=snapshot.dataset,
        snapshot=snapshot.name,
        guid=snapshot.guid,
        from_guid=before.guid if before is not None else None,
        send_flags=flags,
        type=kind,
    )


def _draft(
    instance: Instance,
    source: SourcePart,
    repository: Repository,
    made: SnapshotSet,
    created: datetime,
    sequence: int,
) -> Manifest:
    pool = pool_of(next(iter(made.snapshots.values())).dataset)
    return Manifest(
        backup_id=made.backup_id,
        instance=instance.name,
        repository_id=repository.id,
        created=created,
        tool_version=__version__,
        run_id=instance.host.run_id(),
        host=instance.host.who().host,
        objectives=ObjectivesPart.of(instance.settings.objectives),
        zfs_version=version.userland(),
        pool_guid=version.pool_guid(pool),
        createtxg=made.createtxg,
        sequence=sequence,
        source=source,
        volumes=(),
    )
