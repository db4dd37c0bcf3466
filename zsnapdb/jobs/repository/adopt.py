"""Adopts stored backups and archived binlogs, so that this host treats them as its own.

A host must adopt backups if it was rebuilt, takes over from another host, or prunes another host's objects. A user who
adopts backups trusts everybody who can write to the bucket. So zsnapdb first shows all known facts about each backup.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from zsnapdb.base.errors import DamagedError, NotFound, PreflightError, ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.own_document_digests import DocumentPlaces, OwnDocumentFiles, documents_of, files_of
from zsnapdb.jobs.record import host_backup_record, own_archived_binlogs
from zsnapdb.jobs.record.host_backup_record import StoredCheck
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.jobs.repository import verify
from zsnapdb.jobs.repository.prune_facts import read_local_sets
from zsnapdb.planning.backup_chain import Lineage
from zsnapdb.planning.repository.host_backup_record import EvidenceEnd, RemovedBackup
from zsnapdb.repository import evidence_log, layout
from zsnapdb.repository.binlog_archive import BinlogArchive, listed_damage, stored_sizes
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary, summaries
from zsnapdb.repository.repository import Repository

_PARALLEL_LISTINGS = 8


@dataclass(frozen=True)
class AdoptCandidate:
    """A foreign backup: the reason why it is foreign, facts about it, and the reason against its adoption, if any.

    If there is a reason against the adoption, the backup is adopted only if the user names its id.
    """

    backup: Summary
    why_foreign: str
    facts: tuple[str, ...]
    objection: str


@dataclass(frozen=True)
class AdoptPlan:
    """The records that an adoption writes. `order` contains the ids of the listed backups, oldest first.

    - `binlogs`: the archived binlogs to adopt,
    - `lines`: the digests of all binlog descriptions, by object key,
    - `damaged`: the foreign binlogs that are incomplete and not adopted,
    - `documents`: the SHA-256 digests of small documents (archive parts, drill evidence, findings, pins), with the same
      keys as this host's record.
    """

    instance: str
    candidates: tuple[AdoptCandidate, ...]
    adopted: tuple[Summary, ...]
    binlogs: tuple[ArchivedFile, ...]
    incarnations: tuple[str, ...]
    damaged: tuple[str, ...]
    order: tuple[str, ...]
    documents: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """The backups whose manifests cannot be read.

    `prune` keeps these backups, and all backups that may be their bases.
    """

    @property
    def is_empty(self) -> bool:
        return not self.adopted and not self.binlogs and not self.incarnations and not self.documents


def plan(instance: Instance, names: Sequence[str] = (), *, is_deep: bool = False) -> AdoptPlan:
    """Return the records that `adopt` would write; change nothing.

    If no backups are named, all foreign binlogs are adopted, and all foreign backups without a reason against their
    adoption. If `is_deep` is set, every byte of the backups is read.

    Raises:
        NotFound: a named backup is not foreign.
        PreflightError: a named backup is damaged.
    """
    repository = instance.open_repository()
    known, checked = host_backup_record.checked_backups(instance, repository)
    everything = replace(repository, keyring=repository.keyring.believing_all())
    listed = summaries(everything, instance.name, None) if known.foreign else known
    stored, unread = listed.backups, frozenset(listed.unreadable)
    foreign = [backup for backup in stored if backup.backup_id in checked.provenance.for_removal.foreign]
    for name in names:
        if name not in {backup.backup_id for backup in foreign}:
            raise NotFound(
                f"backup {name} of instance {instance.name} is not a readable foreign backup",
                hint=f"`zsnapdb adopt {instance.name} --plan` lists the foreign backups",
            )
    shown = [backup for backup in foreign if not names or backup.backup_id in names]
    candidates = _judge_backups(instance, everything, stored, shown, checked, is_deep)
    for candidate in candidates if names else ():
        if candidate.objection.startswith(_DAMAGED):
            raise PreflightError(
                f"backup {candidate.backup.backup_id} cannot be adopted: {candidate.objection}",
                hint=f"run `zsnapdb verify {instance.name}`",
            )
    adopted = tuple(one.backup for one in candidates if names or not one.objection)
    order = tuple(backup.backup_id for backup in stored)
    if names:
        return AdoptPlan(instance.name, candidates, adopted, (), (), (), order, unread=unread)
    archive = BinlogArchive(everything, instance.name).load()
    own = BinlogArchive(repository, instance.name).load() if repository.keyring.trusted else archive
    strange = archive.lines.items() - own.lines.items()
    binlogs, damaged = _binlogs(instance, repository, everything, archive, {key for key, _ in strange})
    incarnations = () if repository.keyring.trusted else _incarnations(instance, repository, archive)
    believed = documents_of(repository, instance.name, own) if repository.keyring.trusted else {}
    documents = _documents(files_of(instance), documents_of(everything, instance.name, archive), believed)
    return AdoptPlan(
        instance.name, candidates, adopted, binlogs, incarnations, damaged, order, documents, archive.lines, unread
    )


def adopt(instance: Instance, planned: AdoptPlan) -> None:
    """Write exactly the records that the plan contains.

    Raises:
        DamagedError: a manifest has changed since the plan.
    """
    repository = instance.open_repository()
    everything = replace(repository, keyring=repository.keyring.believing_all())
    for backup in planned.adopted:
        if everything.digested_manifest(instance.name, backup.backup_id)[1] != backup.digest:
            raise DamagedError(
                f"the manifest of backup {backup.backup_id} has changed since it was shown",
                hint="nothing was adopted; run the command again",
            )
    host_backup_record.note_adopted(instance, repository, planned.adopted, planned.order, planned.unread)
    if planned.binlogs or planned.incarnations:
        own_archived_binlogs.note_archived_files(
            instance, repository, planned.binlogs, planned.incarnations, planned.lines
        )
    if planned.documents:
        files_of(instance).add(planned.documents)
    record = HostRecord.of(instance, repository)
    newest = evidence_log.end(repository, instance.name)
    if planned.documents and record is not None and newest.number:
        record.set_evidence_end(EvidenceEnd(number=newest.number, sha256=newest.sha256, own=((1, newest.number),)))


_DAMAGED = "it is damaged: "


def _judge_backups(
    instance: Instance,
    repository: Repository,
    stored: Sequence[Summary],
    shown: Sequence[Summary],
    checked: StoredCheck,
    is_deep: bool,
) -> tuple[AdoptCandidate, ...]:
    here: Mapping[str, frozenset[int]] = {}
    # A host that only prunes or verifies may have no ZFS.
    with contextlib.suppress(ZsnapdbError):
        here = read_local_sets(instance, stored).guids
    own = {backup.writer for backup in stored if backup.backup_id in checked.provenance.proofs}
    twins = {_guids(backup) for backup in stored if backup.backup_id in checked.provenance.for_removal.proofs}
    lineage = Lineage(stored)

    def damage(backup: Summary) -> tuple[str, ...] | None:
        reader = verify.reader(instance, repository) if is_deep else None
        return verify.damage_of(repository, instance.name, backup.backup_id, reader)

    with ThreadPoolExecutor(1 if is_deep else _PARALLEL_LISTINGS, thread_name_prefix="adopt") as pool:
        damages = list(pool.map(damage, shown))
    return tuple(
        _candidate(repository, backup, found, here, own, twins, lineage, checked, is_deep)
        for backup, found in zip(shown, damages, strict=True)
    )


def _candidate(
    repository: Repository,
    backup: Summary,
    damage: tuple[str, ...] | None,
    here: Mapping[str, frozenset[int]],
    own: set[str],
    twins: Collection[frozenset[tuple[str, int]]],
    lineage: Lineage[Summary],
    checked: StoredCheck,
    is_deep: bool,
) -> AdoptCandidate:
    name = backup.backup_id
    present = sum(volume.guid in here.get(volume.role, frozenset()) for volume in backup.volumes)
    signer = repository.keyring.signer(repository.get(layout.manifest(backup.instance, name)))
    content = "every byte was read" if is_deep else "all chunks are listed with their sizes"
    facts = [
        f"of {backup.writer}" + (", as this host's own" if backup.writer in own else ""),
        f"{present} of {len(backup.volumes)} snapshots are on this host",
        f"signed by {signer}, which is not believed here" if signer else "not signed",
        damage[0] if damage else content,
    ]
    objection = ""
    try:
        facts.append(f"chain of {len(lineage.chain(backup))}")
    except DamagedError as error:
        objection = error.message
    if name in checked.future:
        objection = "its id is of a later time than now"
    if name in checked.provenance.rewritten:
        objection = "this host stored another manifest under this id"
    elif (name in checked.provenance.untrusted or _guids(backup) in twins) and not host_backup_record.is_consolidated(
        backup
    ):
        objection = "this host stored these snapshots under another id"
    if damage or damage is None:
        objection = _DAMAGED + (damage[0] if damage else "it was removed meanwhile")
    return AdoptCandidate(backup, checked.provenance.for_removal.foreign[name], tuple(facts), objection)


def _guids(backup: Summary) -> frozenset[tuple[str, int]]:
    return frozenset((volume.role, volume.guid) for volume in backup.volumes)


def _binlogs(
    instance: Instance, repository: Repository, everything: Repository, archive: Archive, strange: set[str]
) -> tuple[tuple[ArchivedFile, ...], tuple[str, ...]]:
    """Return the foreign binlogs whose objects are all in the store, and the names of the other foreign binlogs.

    `strange` contains the keys of untrusted descriptions.
    """
    known = own_archived_binlogs.known_binlogs(instance, repository, archive.files)
    stored = BinlogArchive(everything, instance.name)
    files = [
        file
        for file in archive.files
        if file.is_rotated and ((file.incarnation, file.name) not in known or stored.file_key(file) in strange)
    ]
    sizes = stored_sizes(stored, files)
    damaged = {file.name for file in files if listed_damage(stored, file, sizes)}
    whole = tuple(file for file in files if file.name not in damaged)
    return whole, tuple(file.name for file in files if file.name in damaged)


def _documents(own: OwnDocumentFiles, there: DocumentPlaces, believed: DocumentPlaces) -> Mapping[str, Sequence[str]]:
    """Return the digests of the small documents that this host did not write and that have no trusted signature.

    The result has the same keys as the record of this host.
    """
    signed = {digest for digests in believed.values() for digest in digests}
    foreign = {
        place: [one for one in digests if not own.knows(one) and one not in signed] for place, digests in there.items()
    }
    return {place: digests for place, digests in foreign.items() if digests}


def _incarnations(instance: Instance, repository: Repository, archive: Archive) -> tuple[str, ...]:
    known = own_archived_binlogs.known_binlogs(instance, repository, archive.files)
    active = [file for file in archive.files if not file.is_rotated]
    return tuple(dict.fromkeys(file.incarnation for file in active if (file.incarnation, file.name) not in known))


@dataclass(frozen=True)
class ForgetResult:
    """The ids of the backups that this host no longer expects in the repository."""

    instance: str
    backups: tuple[str, ...]


def plan_forget(instance: Instance, names: Sequence[str]) -> ForgetResult:
    """Return the backups that `forget` would forget now; change nothing."""
    return _forgotten(instance, instance.open_repository(), names)[0]


def forget(instance: Instance, names: Sequence[str]) -> ForgetResult:
    """Record that this host no longer expects the given backups in the repository.

    If no backups are named, this applies to all missing backups, and to the backups of other repositories that were at
    the same address. Afterwards no command reports them as missing, and a
    prune of this host may destroy their local snapshots.

    Raises:
        NotFound: this host never stored a backup with the given id, or the backup is still in the repository.
    """
    repository = instance.open_repository()
    result, removed = _forgotten(instance, repository, names)
    host_backup_record.note_removed(instance, repository, removed)
    if not names:
        host_backup_record.note_others_removed(instance, repository)
    return result


def _forgotten(
    instance: Instance, repository: Repository, names: Sequence[str]
) -> tuple[ForgetResult, list[RemovedBackup]]:
    """Return the result of `forget`, and the missing backups of this repository."""
    removed = _removed(instance, repository, names)
    others = () if names else host_backup_record.records_of_others(instance, repository)
    elsewhere = (backup.backup_id for record in others for backup in record.stored)
    return ForgetResult(instance.name, (*elsewhere, *(backup.backup_id for backup in removed))), removed


def _removed(instance: Instance, repository: Repository, names: Sequence[str]) -> list[RemovedBackup]:
    _, checked = host_backup_record.checked_backups(instance, repository)
    missing = {backup.backup_id: backup for backup in checked.missing}
    for name in names:
        if name not in missing:
            raise NotFound(
                f"backup {name} of instance {instance.name} is not a missing backup of this host",
                hint="run `zsnapdb list` to see the missing backups",
            )
    chosen = names or tuple(missing)
    return [
        RemovedBackup(
            backup_id=name,
            guids=missing[name].guids,
            acknowledged=True,
            sequence=recorded.sequence if (recorded := missing[name].recorded) is not None else None,
        )
        for name in chosen
    ]
