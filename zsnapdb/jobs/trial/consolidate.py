"""Consolidates a chain into a full backup.

The chain is received into scratch datasets. Full streams of its last snapshots are then stored as a new backup. The
instance itself is not read. The received snapshots have the same GUIDs as the original snapshots, so the next increment
can be based on the new full backup.

Invariants:

- The manifest is written last, under the writer lease of the instance. A killed run leaves chunks without a manifest,
  and `prune` removes these chunks. The next run removes leftovers in the pool (`scratch_datasets.py`).
- Receiving and sending need no writer lease, so the instance can be backed up at the same time.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from zsnapdb import __version__
from zsnapdb.base.errors import DamagedError, NotFound, RepositoryError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.send import LeasedChunks, settings_for, store_stream
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.restore import chain_checks, volume_receive
from zsnapdb.jobs.restore.preflight import judge_pool
from zsnapdb.jobs.restore.volume_receive import ReceivingWork, pool_needs, receives_of
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.planning.backup.fitness import FitnessFinding, require_fit
from zsnapdb.planning.backup.send_form import decide_chunk_size, decide_first_chunk
from zsnapdb.planning.repository import consolidation
from zsnapdb.planning.restore.steps import PoolNeeds, Receive
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import DataKey
from zsnapdb.repository.manifest import Manifest, VolumePart
from zsnapdb.repository.repository import Repository, confirm
from zsnapdb.repository.verifications import known_damage
from zsnapdb.repository.writer_lease import WriterLease, lease
from zsnapdb.zfs import datasets, version

_COMMIT_PATIENCE = 3600.0
"""The time in seconds for which a run waits for a running backup or prune before it writes its manifest."""


@dataclass(frozen=True)
class ConsolidatePlan:
    """The plan of a consolidation, with the chain to receive (full backup first) and the id of the new backup.

    `findings` describes problems of the pool and the stored chain. `reasons` says why this chain was chosen.
    """

    instance: str
    chain: tuple[Manifest, ...]
    backup_id: str
    place: scratch_datasets.Scratch
    receives: tuple[Receive, ...]
    findings: tuple[FitnessFinding, ...]
    reasons: tuple[str, ...]

    @property
    def original(self) -> Manifest:
        """The last backup of the chain. The new full backup contains the same snapshots."""
        return self.chain[-1]

    @property
    def restore_id(self) -> str:
        """The mark of the received datasets."""
        return self.place.scratch_id

    def dataset(self, role: str) -> str:
        """Return the dataset that receives the volume."""
        return f"{self.place.container}/{role}"


@dataclass(frozen=True)
class ConsolidateResult:
    """The stored full backup, and the seconds that it took to receive the chain and to send the full streams."""

    plan: ConsolidatePlan
    manifest: Manifest
    receive_seconds: float
    send_seconds: float


class _Work(ReceivingWork[ConsolidatePlan]):
    """A consolidation in progress. It is never resumed, because each run uses new scratch datasets."""

    def manifest(self, backup_id: str) -> Manifest:
        return next(manifest for manifest in self.plan.chain if manifest.backup_id == backup_id)


def plan(instance: Instance, repository: Repository, requested: str) -> ConsolidatePlan:
    """Return the plan of a consolidation; change nothing.

    `requested` is the id of a backup, or `latest`. Also raises the errors of `consolidation.choose`.

    Raises:
        ConfigError: a key of the repository is missing.
        PreflightError: no pool is suitable.
        DamagedError: a chunk is missing.
    """
    repository.check_writable()
    known, checked = host_backup_record.checked_backups(instance, repository)
    checked.warn(instance)
    made_id = instance.host.new_backup_id()
    chosen = consolidation.choose(
        checked.provenance.trusted(known.backups),
        requested,
        known_damage(repository, instance.name),
        checked.unchosen,
        int(made_id[-4:], 16),
    )
    chain = tuple(repository.manifest(instance.name, link.backup_id) for link in chosen.chain)
    place = scratch_datasets.place(
        scratch_datasets.home(instance, tuple(volume.dataset for volume in chain[-1].volumes)), made_id, "consolidate"
    )
    needs = pool_needs(PoolNeeds, chain, place.container)
    findings = judge_pool(needs, f"set dataset under [instance.{instance.name}.drill]")
    for manifest in chain:
        findings += chain_checks.judge_chunks(instance, repository, manifest)
    places = {volume.role: (f"{place.container}/{volume.role}", "none") for volume in chain[-1].volumes}
    receives = receives_of(((link, volume) for link in chain for volume in link.volumes), places)
    return ConsolidatePlan(instance.name, chain, chosen.backup_id, place, receives, tuple(findings), chosen.reasons)


def consolidate(settings: Settings, instance: Instance, requested: str) -> ConsolidateResult:
    """Plan a consolidation and execute that plan. Raises the errors of `plan` and `execute`."""
    repository = instance.open_repository()
    return execute(settings, instance, repository, plan(instance, repository, requested))


def execute(
    settings: Settings, instance: Instance, repository: Repository, planned: ConsolidatePlan
) -> ConsolidateResult:
    """Execute exactly this plan. Afterwards the new full backup is in the repository, and no scratch dataset remains.

    If an error occurs, no backup was added or changed.

    Raises:
        PreflightError: the pool is not suitable; nothing was created.
        NotFound: another process removed the chain after the plan was made.
    """
    require_fit(planned.findings)
    # Take the instance's lock for consolidations. This lock excludes consolidations on all hosts.
    only = lease(
        repository,
        f"{instance.name}/consolidate",
        doing=f"consolidating {instance.name}",
        tell=instance.events.tell,
        has_ended=instance.host.has_ended,
        patience=instance.wait,
    )
    with only as alone, at_low_priority(), contextlib.ExitStack() as until_stored:
        with scratch_datasets.ephemeral(instance, planned.place, settings.restore.mount_root):
            began = time.monotonic()
            _receive(_Work(settings, instance, repository, planned, is_first_run=True))
            received = time.monotonic()
            until_stored.enter_context(undone_on_error(lambda: _forget(repository, planned)))
            manifest = _send(instance, repository, planned, alone)
            sent = time.monotonic()
        _commit(instance, repository, planned, manifest)
    return ConsolidateResult(planned, manifest, received - began, sent - received)


def _receive(work: _Work) -> None:
    """Receive the chain.

    Afterwards each scratch dataset has the last snapshot of its volume, with the GUID of the original snapshot.
    """
    planned = work.plan
    try:
        for step in planned.receives:
            volume_receive.receive(work, step)
    except (DamagedError, NotFound) as error:
        there = set(work.repository.backup_ids(planned.instance))
        gone = [manifest.backup_id for manifest in planned.chain if manifest.backup_id not in there]
        if gone:
            raise NotFound(
                f"backup {gone[0]} was removed from the repository meanwhile", hint="run again; see `zsnapdb list`"
            ) from error
        raise
    for volume in planned.original.volumes:
        name = f"{planned.dataset(volume.role)}@{volume.snapshot}"
        if datasets.guid(name) != volume.guid:
            raise DamagedError(
                f"{name} was received with a GUID other than {volume.guid}",
                hint="the repository's chain is inconsistent; see `zsnapdb verify`",
            )


def _send(instance: Instance, repository: Repository, planned: ConsolidatePlan, alone: WriterLease) -> Manifest:
    """Store full streams of the received snapshots. Return the manifest of the new backup, but do not write it."""
    key = repository.keyring.new_key("1") if repository.keyring.is_encrypting else None
    volumes = tuple(
        _send_volume(instance, repository, planned, volume, alone, key) for volume in planned.original.volumes
    )
    known, checked = host_backup_record.checked_backups(instance, repository)
    return planned.original.model_copy(
        update={
            "backup_id": planned.backup_id,
            "sequence": host_backup_record.next_sequence(instance, repository, checked.numbers(known.backups)),
            "tool_version": __version__,
            "run_id": instance.host.run_id(),
            "zfs_version": version.userland(),
            "keys": (key.part,) if key is not None else (),
            "volumes": volumes,
        }
    )


def _send_volume(
    instance: Instance,
    repository: Repository,
    planned: ConsolidatePlan,
    original: VolumePart,
    alone: WriterLease,
    key: DataKey | None,
) -> VolumePart:
    """Store one volume's full stream with the chain's flags and codec. Return the volume's part of the manifest."""
    chunks = repository.chunks(planned.instance, planned.backup_id, original.role)
    # Estimate the size: the new full streams are about as large as the full streams at the start of the chain.
    sizes = [planned.chain[0].plain_size]
    settings = settings_for(instance, decide_chunk_size(instance.upload_settings().chunk_size, sizes))
    first = decide_first_chunk(settings.size_of(1), settings.chunk_size, sizes)
    settings = replace(settings, codec=original.codec, first_chunk=first)
    draft = original.model_copy(update={"from_guid": None, "sent_from": planned.dataset(original.role)})
    stored = store_stream(draft, None, LeasedChunks(chunks, alone), settings, instance.events, key)
    return draft.model_copy(
        update={
            "features": stored.begin.features,
            "plain_size": stored.plain_size,
            "sha256": stored.sha256,
            "chunks": stored.chunks,
        }
    )


def _commit(instance: Instance, repository: Repository, planned: ConsolidatePlan, manifest: Manifest) -> None:
    """Write the manifest under the writer lease of the instance, after every chunk is confirmed.

    Raises:
        NotFound: another process removed the original backup, so the new backup must not be added.
    """
    patient = instance.waiting(max(instance.wait, _COMMIT_PATIENCE))
    doing = "storing a consolidated backup of"
    with (
        lock_instance(patient, "backup", doing),
        lease(
            repository,
            f"{instance.name}/writer",
            doing=f"{doing} {instance.name}",
            tell=instance.events.tell,
            has_ended=instance.host.has_ended,
            patience=patient.wait,
        ) as writer,
    ):
        if not repository.exists(layout.manifest(planned.instance, planned.original.backup_id)):
            raise NotFound(
                f"backup {planned.original.backup_id} was removed from the repository meanwhile",
                hint="run again; see `zsnapdb list`",
            )
        for volume in manifest.volumes:
            confirm(repository.chunks(manifest.instance, manifest.backup_id, volume.role), volume.chunks)
        writer.confirm()
        digest = repository.commit(manifest)
        host_backup_record.note_stored(instance, repository, manifest, digest)


def _forget(repository: Repository, planned: ConsolidatePlan) -> None:
    """Remove the chunks of a failed consolidation if it has no manifest. `prune` removes any remaining chunks."""
    with contextlib.suppress(RepositoryError):
        if not repository.exists(layout.manifest(planned.instance, planned.backup_id)):
            sizes = repository.sizes(layout.chunks_of_backup(planned.instance, planned.backup_id))
            repository.delete_many(list(sizes))
