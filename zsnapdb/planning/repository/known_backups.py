"""Decides whether each stored backup is known to this host or foreign, with reasons. Pure.

Anyone who can write to a repository can add a manifest. A backup is known to this host if one of three proofs exists: a
trusted signature, its snapshots and manifest in this host's record, or marked snapshots on this host. Only known
backups are considered for removal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from zsnapdb.base.quantities import quantity
from zsnapdb.config.repository import EncryptionSettings
from zsnapdb.planning.backup_chain import Link
from zsnapdb.planning.clock_guard import FAR
from zsnapdb.planning.creation_order import PlacedLink
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.host_backup_record import (
    BackupRecord,
    LocalBackup,
    RemovedBackup,
    StoredFinding,
    StoredKind,
    backups_in,
    newest_of,
)

_PUT_BACK = "this host removed it, or was told that it was removed, and it is there again"
SIGNING_KEY = "/etc/zsnapdb/signing-key"


class SigningState(StrEnum):
    """The configured signing of documents: this host signs, only reads the repository, or does not sign."""

    KEY = "key"
    READER = "reader"
    NONE = "none"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, settings: EncryptionSettings) -> SigningState:
        """Return the state that follows from the settings of a repository."""
        if settings.signing_key_file is not None:
            return cls.KEY
        if settings.signing is not None:
            return cls.NONE
        return cls.READER if settings.signers else cls.UNDECIDED


def signing_hint(repository: str) -> str:
    """Return a hint that tells the user how to configure signing for a repository."""
    return (
        f"run `zsnapdb key generate --signing-key {SIGNING_KEY}` and set signing_key_file under"
        f' [repository.{repository}.encryption], or decide against it with signing = "none" there'
    )


def trust_hint(repository: str) -> str:
    """Return a hint that tells the user to set a signing key for this host or to set the trusted signers."""
    return (
        f"run `zsnapdb key generate --signing-key {SIGNING_KEY}` and set signing_key_file under"
        f" [repository.{repository}.encryption]. A host that only prunes, verifies or restores there sets signers, to"
        " what `zsnapdb key show` prints on the host that backs up"
    )


def signing_note(encryption: EncryptionSettings, repository: str) -> str:
    """Return a warning if this host writes documents without signing them; else ""."""
    match SigningState.of(encryption):
        case SigningState.NONE:
            return 'this host signs nothing (signing = "none"): it believes whoever can write to the repository'
        case SigningState.UNDECIDED:
            return (
                "this host signs nothing, and its configuration does not say so: it believes whoever can write to the"
                f" repository; {signing_hint(repository)}"
            )
        case _:
            return ""


L = TypeVar("L", bound=Link)


class KnownBy(StrEnum):
    """The kind of proof that makes a backup known to this host."""

    SIGNATURE = "signature"
    RECORD = "record"
    SNAPSHOTS = "snapshots"


@dataclass(frozen=True)
class Provenance:
    """The proof for each known backup, and the reason why each other backup is foreign.

    - `knows_any`: whether this host stored or adopted backups of the instance, or trusts signatures. If not, known and
      foreign backups cannot be distinguished, so all can be restored, and none is removed.
    - `rewritten`: the foreign backups with an id under which this host stored a different manifest
    - `untrusted`: the rewritten backups, and foreign backups with the snapshots of one of this host's backups in their
      manifests. Chains never use these backups.
    - `begun`: the known backups whose removal this host began
    - `unsealed`: the digests of known manifests that are not in the record
    """

    knows_any: bool = False
    proofs: Mapping[str, KnownBy] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    rewritten: tuple[str, ...] = ()
    untrusted: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    unsealed: Mapping[str, str] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    """Known consolidated backups that an earlier version made but did not record."""
    unread: frozenset[str] = frozenset()
    """The foreign backups whose manifests cannot be read."""
    stored: frozenset[str] = frozenset()
    """The backups that this host stored or adopted, even if the repository does not list them."""
    has_record: bool = True
    """Whether this host recorded a backup that it stored or adopted, or whether this host trusts signatures."""

    @property
    def unchosen(self) -> Mapping[str, str]:
        """The foreign backups, with reasons. A foreign backup is used only if a user names it.

        The result is empty on a host that knows no backup.
        """
        return self.foreign if self.knows_any else {}

    @property
    def for_removal(self) -> Provenance:
        """Return the provenance that is used for removals.

        Snapshots on this host prove the data of a backup. They do not prove that its manifest is the one that this host
        stored.
        """
        unproved = [name for name, proof in self.proofs.items() if proof is KnownBy.SNAPSHOTS]
        proofs = {name: proof for name, proof in self.proofs.items() if proof is not KnownBy.SNAPSHOTS}
        why = "this host has its snapshots, and no record of its manifest; `zsnapdb adopt` adds one"
        return replace(
            self,
            knows_any=self.knows_any and self.has_record,
            proofs=proofs,
            foreign={**self.foreign, **dict.fromkeys(unproved, why)},
        )

    def trusted(self, stored: Sequence[L]) -> list[L]:
        """Return the backups that may be part of a chain, in the given order."""
        return [link for link in stored if link.backup_id not in self.untrusted]


def judge(
    there: Sequence[PlacedLink],
    digests: Mapping[str, str],
    record: BackupRecord,
    local: Sequence[LocalBackup],
    *,
    is_signed: bool,
    consolidated: Collection[str] = (),
    unbelieved: Mapping[str, str] | None = None,
    unreadable: Collection[str] = (),
) -> Provenance:
    """Return the provenance of backups. The argument `unreadable` contains the backups with unreadable manifests.

    The argument `digests` contains the SHA-256 of the manifests by id, and `local` the backups with marked snapshots on
    this host. If `is_signed` is set, this host trusts only manifests that a trusted key signed or that this host
    recorded, and `unbelieved` contains the reasons against all others, by id. The argument `consolidated` contains the
    backups that are consolidated according to their manifests. A record without digests is from an earlier version.
    With such a record, a consolidated backup is known if it contains the snapshots of a recorded increment.
    """
    removed = {backup.backup_id for backup in record.removed}
    here = (backup.backup_id for backup in local if backup.backup_id not in removed)
    ids = frozenset((*(backup.backup_id for backup in record.stored), *here))
    if is_signed:
        known = _of_signed(there, digests, record, unbelieved or {}, ids)
    else:
        known = _of_unsigned(there, digests, record, local, consolidated, ids)
    return _with_unread(known, record, unreadable)


def _of_unsigned(
    there: Sequence[Link],
    digests: Mapping[str, str],
    record: BackupRecord,
    local: Sequence[LocalBackup],
    consolidated: Collection[str],
    ids: frozenset[str],
) -> Provenance:
    """Return the provenance for a repository in which this host trusts its own record and snapshots."""
    stored = {backup.backup_id: backup for backup in record.stored}
    removed = {backup.backup_id: backup for backup in record.removed}
    here = {backup.backup_id: frozenset(backup.guids.items()) for backup in local}
    twins = {_guids(backup): backup.backup_id for backup in record.stored}
    twins |= {guids: name for name, guids in here.items()}
    proofs, foreign = dict[str, KnownBy](), dict[str, str]()
    rewritten, inherited = list[str](), list[str]()
    heritage = _heritage(record, consolidated)
    for link in there:
        name, digest = link.backup_id, digests.get(link.backup_id, "")
        if name in stored:
            if _guids(link) == _guids(stored[name]) and stored[name].manifest in (None, digest):
                proofs[name] = KnownBy.RECORD
            else:
                foreign[name] = "it was rewritten: its manifest is not the one that this host stored under this id"
                rewritten.append(name)
        elif name in removed and _is_begun(removed[name], link, digests):
            proofs[name] = KnownBy.RECORD
        elif name not in removed and here.get(name) == _guids(link):
            proofs[name] = KnownBy.SNAPSHOTS
        elif name not in removed and (name, _guids(link)) in heritage:
            proofs[name] = KnownBy.RECORD
            inherited.append(name)
        else:
            foreign[name] = _why(name, removed, twins.get(_guids(link)))
    old = [name for name in proofs if name in stored and stored[name].manifest is None]
    claims = {link.backup_id for link in there if link.backup_id in foreign and _guids(link) in twins}
    return Provenance(
        knows_any=bool(ids),
        proofs=proofs,
        foreign=foreign,
        rewritten=tuple(rewritten),
        untrusted=frozenset({*claims, *rewritten}),
        begun=frozenset(name for name in proofs if name in removed and name not in stored),
        unsealed={name: digests[name] for name in old if digests.get(name)},
        inherited=tuple(inherited),
        stored=ids,
        has_record=bool(stored),
    )


def _with_unread(known: Provenance, record: BackupRecord, unreadable: Collection[str]) -> Provenance:
    """Return the provenance, with unreadable backups that this host did not store added as foreign.

    An unreadable manifest proves nothing. So an unreadable backup is foreign only if the record is complete. A record
    is complete if this version wrote it and it contains every known backup. If the record is incomplete, this host may
    have stored the unreadable backup, so the provenance stays unchanged.
    """
    recorded = {backup.backup_id for backup in record.stored}
    is_complete = any(backup.manifest is not None for backup in record.stored)
    removed = {backup.backup_id for backup in record.removed}
    if not is_complete or not known.proofs.keys() - removed <= recorded:
        return known
    unread = frozenset(unreadable) - known.stored - removed - set(record.unread)
    why = "its manifest cannot be read, and this host did not store it"
    return replace(known, foreign={**known.foreign, **dict.fromkeys(unread, why)}, unread=unread)


def _of_signed(
    there: Sequence[PlacedLink],
    digests: Mapping[str, str],
    record: BackupRecord,
    unbelieved: Mapping[str, str],
    ids: frozenset[str],
) -> Provenance:
    """Return the provenance for a repository in which this host trusts only signed or recorded manifests."""
    stored = {backup.backup_id: backup for backup in record.stored}
    links = {link.backup_id: link for link in there}
    begun = frozenset(
        one.backup_id
        for one in record.removed
        if one.backup_id not in stored and _is_begun(one, links.get(one.backup_id), digests)
    )
    rewritten = [name for name in unbelieved if name in stored and stored[name].manifest is not None]
    removed = {backup.backup_id for backup in record.removed}
    put_back = {
        link.backup_id: _PUT_BACK
        for link in there
        if link.backup_id not in stored
        and link.backup_id not in begun
        and (link.backup_id in removed or any(first <= (link.sequence or 0) <= last for first, last in record.gone))
    }
    by_key = {link.backup_id: KnownBy.SIGNATURE for link in there if link.backup_id not in put_back}
    untrusted = frozenset((*rewritten, *put_back))
    return Provenance(True, by_key, {**unbelieved, **put_back}, tuple(rewritten), untrusted, begun, stored=ids)


def _heritage(
    record: BackupRecord, consolidated: Collection[str]
) -> Collection[tuple[str, frozenset[tuple[str, int]]]]:
    """Return the ids and snapshots that consolidated backups from an earlier version may have."""
    if any(backup.manifest is not None for backup in record.stored):
        return ()
    increments = [backup for backup in record.stored if any(v.from_guid is not None for v in backup.volumes)]
    return {(name, _guids(backup)) for name in consolidated for backup in increments}


def _why(name: str, removed: Mapping[str, RemovedBackup], twin: str | None) -> str:
    if name in removed:
        return _PUT_BACK
    return "this host did not store it" + (f"; it names the snapshots of {twin}" if twin else "")


def _is_begun(removed: RemovedBackup, link: Link | None, digests: Mapping[str, str]) -> bool:
    """Return whether this host began to remove a backup with the same snapshots and manifest."""
    if link is None or removed.acknowledged or removed.manifest not in (None, digests.get(link.backup_id, "")):
        return False
    return {volume.guid for volume in link.volumes} == set(removed.guids)


def _guids(link: Link) -> frozenset[tuple[str, int]]:
    return frozenset((volume.role, volume.guid) for volume in link.volumes)


def judge_foreign(
    instance: str, foreign: Mapping[str, str], rewritten: Sequence[str], named: Collection[str], *, knows_any: bool
) -> tuple[StoredFinding, ...]:
    """Return the findings about foreign backups. The argument `foreign` maps their ids to the reasons.

    The argument `rewritten` contains the foreign backups that use the ids of this host's own backups. The argument
    `named` contains the backups that another finding already mentions. If `knows_any` is False, there is no finding.
    """
    if not knows_any:
        return ()
    findings, own = [], tuple(sorted(rewritten))
    if own:
        text = f"{backups_in(own)} of this host in the repository was rewritten: the manifest is not the one that"
        hint = (
            "look for the objects in older versions or in a copy of the bucket; restore a backup that `zsnapdb list"
            f" {instance}` does not call foreign"
        )
        text += f" this host stored ({newest_of(own)})"
        findings.append(StoredFinding(StoredKind.REWRITTEN, text, hint, own))
    others = tuple(sorted(foreign.keys() - set(rewritten) - set(named)))
    if others:
        text = (
            f"the repository has {backups_in(others)} that this host does not know ({newest_of(others)}): {others[-1]}:"
            f" {foreign[others[-1]]}; foreign backups are not counted, removed or chosen as the latest"
        )
        hint = (
            f"run `zsnapdb adopt {instance} --plan`, which shows what is known of them. If another host stores them"
            " regularly, set signers here to what `zsnapdb key show` prints there"
        )
        findings.append(StoredFinding(StoredKind.FOREIGN, text, hint, others))
    return tuple(findings)


def judge_future(instance: str, future: Mapping[str, datetime], now: datetime) -> tuple[StoredFinding, ...]:
    """Return a finding if there are backups with a time in the future. The argument `future` has the times by id."""
    names = tuple(sorted(future))
    if not names:
        return ()
    return (
        StoredFinding(
            StoredKind.FROM_FUTURE,
            f"the repository has {backups_in(names)} from the future that this host did not store ({newest_of(names)}):"
            f" the newest says {future[names[-1]]:%Y-%m-%d %H:%M} UTC, and this host has {now:%Y-%m-%d %H:%M} UTC;"
            f" such a backup is not chosen as the latest",
            "check `date -u` here and on the host that stored it. If a clock was wrong, name the id, as in `zsnapdb"
            f" restore {instance} --to {names[-1]}`; otherwise somebody else wrote it",
            names,
        ),
    )


def judge_foreign_binlogs(instance: str, names: Sequence[str], *, is_signed: bool) -> tuple[StoredFinding, ...]:
    """Return a finding if there are archived binlogs whose descriptions are not known to this host.

    The argument `names` contains the names of these binlogs. If this host trusts only signatures (`is_signed`), it
    contains the keys of the descriptions of foreign histories.
    """
    if not names:
        return ()
    hint = f"run `zsnapdb adopt {instance} --plan`, which shows what is known of them"
    what = f"{quantity(len(names), 'binlog')} whose descriptions this host does not know"
    if is_signed:
        what = f"{quantity(len(names), 'description')} of binlog histories, signed by no trusted key"
        hint += ". To discard a history, remove the object of this name with the store's own tools"
    text = f"the archive has {what} ({newest_of(names)}); no objective, restore or purge uses them"
    return (StoredFinding(StoredKind.FOREIGN, text, hint),)


def from_future(backup_ids: Iterable[str], now: datetime, own: Collection[str]) -> Mapping[str, datetime]:
    """Return a map from the ids that contain a time more than a day after `now` to these times.

    Anyone who can write to a repository can add such a backup, which would then be treated as the newest. The argument
    `own` contains the ids of the backups that this host stored. The result never contains these ids. A future time in
    them shows only that the clock was or is wrong.
    """
    times = {name: retention.time_of(name) for name in backup_ids}
    return {name: time for name, time in times.items() if time - now > FAR and name not in own}
