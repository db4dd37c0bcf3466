"""The findings of `verify`: for each backup, the time of the last check that found no damage, and the known damage.

Each run of verify writes one object. Readers merge all objects. A successful run copies the earlier findings into its
own object and removes the objects that it read, so that few objects exist. Overlapping runs lose no findings, because
each run removes only objects that it has read.

If a host has a signing key, it trusts findings and manifests only if a known key signed them. Findings determine
whether the next backup is full, and whether an archived binlog may be removed from the server.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base.errors import DamagedError, NotFound, RepositoryError
from zsnapdb.base.patterns import BACKUP_ID, BINLOG, InstanceName, Moment, RepositoryId, SequenceNumber, Sha256, Words
from zsnapdb.planning import creation_order
from zsnapdb.planning.damage_register import DamageKind, DamageRegister, KnownDamage
from zsnapdb.planning.repository.document_digests import CHECKS
from zsnapdb.repository import drills, layout
from zsnapdb.repository.drills import ALL_PAGES, Evidence, Outcome
from zsnapdb.repository.layout import VerificationKey
from zsnapdb.repository.repository import Repository


class Depth(StrEnum):
    """The depth of a check: a listing checks the presence and size of objects, and a read checks every byte."""

    LISTED = "listed"
    READ = "read"


class VerificationRecord(BaseModel):
    """The finding of one check, and its time (UTC). An empty `damage` means that the check found no damage.

    `since` is the time when the damage was first found (None: by this check). `by` is the name of the check. `sequence`
    is the check's sequence number among the checks of the object. `digest` is the SHA-256 of the checked manifest or
    description. Findings that earlier versions stored have neither sequence nor digest.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    when: Moment
    damage: tuple[Words, ...] = ()
    since: Moment | None = None
    by: Words = "verify"
    sequence: SequenceNumber | None = None
    digest: Sha256 | None = None


_CheckedName = Annotated[str, Field(pattern=rf"^{BACKUP_ID}(/{BINLOG})?$")]
"""A backup id, or an archived binlog: its incarnation and its name."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)

    format: int = 1
    repository_id: RepositoryId
    instance: InstanceName
    backups: dict[_CheckedName, dict[Depth, VerificationRecord]]


@dataclass(frozen=True)
class Checks:
    """The latest finding of each depth, keyed by backup id. `keys` are the keys of the objects with the findings."""

    findings: Mapping[str, Mapping[Depth, VerificationRecord]] = field(default_factory=dict)
    keys: Sequence[VerificationKey] = ()

    def damaging(self) -> dict[str, VerificationRecord]:
        """Return the record of the damage of each damaged backup, keyed by backup id.

        If a read found damage, only a later read without damage clears it. If a listing found damage, any later check
        without damage clears it.
        """
        records = ((name, _damaging(by_depth)) for name, by_depth in self.findings.items())
        return {name: record for name, record in records if record is not None}

    def damaged(self) -> dict[str, tuple[str, ...]]:
        """Return the known damage, keyed by backup id."""
        return {name: record.damage for name, record in self.damaging().items()}

    def whole_since(self, name: str, depth: Depth) -> datetime | None:
        """Return the time of the last good check of at least this depth.

        The result is None if no such check exists or damage is known.
        """
        by_depth = self.findings.get(name, {})
        if _damaging(by_depth) is not None:
            return None
        deep_enough = [d for d in Depth if d is depth or d is Depth.READ]
        good = creation_order.latest_finding(one for d, one in by_depth.items() if d in deep_enough and not one.damage)
        return good.when if good is not None else None

    def about(self, digests: Mapping[str, str]) -> Checks:
        """Return only the checks of the given objects, which are identified by name and current digest.

        Good checks of a replaced object are dropped. Damage stays known until a later check finds no damage.
        """
        return Checks(
            {
                name: {
                    depth: record
                    for depth, record in by_depth.items()
                    if record.damage or record.digest in (None, digests[name])
                }
                for name, by_depth in self.findings.items()
                if name in digests
            },
            self.keys,
        )


def _damaging(by_depth: Mapping[Depth, VerificationRecord]) -> VerificationRecord | None:
    listed, read = by_depth.get(Depth.LISTED), by_depth.get(Depth.READ)
    if read is not None and read.damage:
        return read
    if listed is not None and listed.damage:
        return listed if read is None or creation_order.latest_finding((read, listed)) is listed else None
    return None


def finding(
    depth: Depth,
    when: datetime,
    damage: tuple[str, ...],
    before: Mapping[Depth, VerificationRecord],
    by: str = "",
    digest: str | None = None,
) -> VerificationRecord:
    """Return the record of a check. Known damage keeps the time of its first finding.

    `by` is the name of the check; if it is empty, the check is verify. `digest` is the digest of the checked object, if
    known.
    """
    known = _damaging(before)
    since = (known.since or known.when) if damage and known is not None else None
    default = "verify --deep" if depth is Depth.READ else "verify"
    number = creation_order.next_number(0, [one.sequence for one in before.values()])
    return VerificationRecord(when=when, damage=damage, since=since, by=by or default, sequence=number, digest=digest)


def _merged(
    one: Mapping[str, Mapping[Depth, VerificationRecord]], two: Mapping[str, Mapping[Depth, VerificationRecord]]
) -> dict[str, dict[Depth, VerificationRecord]]:
    merged = {name: dict(by_depth) for name, by_depth in one.items()}
    for name, by_depth in two.items():
        mine = merged.setdefault(name, {})
        for depth, finding in by_depth.items():
            mine[depth] = creation_order.latest_finding((mine.get(depth, finding), finding)) or finding
    return merged


def read(repository: Repository, instance: str) -> Checks:
    """Return all findings. An unreadable or untrusted object is ignored, so `verify` will check its backups again.

    If a host checks no signatures, it uses the damage in foreign objects, but ignores their good checks. Damage that
    this host has recorded stays known if its object is removed.
    """
    findings, keys = _recorded_damage(repository, instance), []
    for listed in repository.list(layout.verifications(instance)):
        try:
            line = repository.verified(listed.key)
            document = _File.model_validate_json(line)
        except (ValidationError, DamagedError, NotFound):
            continue
        if (document.repository_id, document.instance) != (repository.id, instance):
            continue
        keys.append(listed.key)
        found = document.backups if repository.keyring.is_known(line) else _bad(document.backups)
        findings = _merged(findings, found)
    return Checks(findings, tuple(keys))


def _recorded_damage(repository: Repository, instance: str) -> dict[str, dict[Depth, VerificationRecord]]:
    line = repository.keyring.own.known_damage() if repository.keyring.own is not None else None
    with contextlib.suppress(ValidationError):
        document = _File.model_validate_json(line or b"")
        if (document.repository_id, document.instance) == (repository.id, instance):
            return _bad(document.backups)
    return {}


def _bad(
    findings: Mapping[str, Mapping[Depth, VerificationRecord]],
) -> dict[str, dict[Depth, VerificationRecord]]:
    return {name: {d: one for d, one in by_depth.items() if one.damage} for name, by_depth in findings.items()}


def new_key(instance: str, when: datetime) -> VerificationKey:
    """Return a new key for the findings of a run."""
    return layout.verification(instance, when, secrets.randbits(32))


def write(repository: Repository, instance: str, key: VerificationKey, checks: Checks) -> None:
    """Write the findings about the instance under the key. No object is removed.

    Raises: ConfigError, before anything is written, if this host trusts only signed findings and does not sign.
    """
    findings = {name: dict(by_depth) for name, by_depth in checks.findings.items()}
    document = _File(repository_id=repository.id, instance=instance, backups=findings)
    body = repository.keyring.signed(document.model_dump_json().encode(), CHECKS)
    if repository.keyring.own is not None:
        names = checks.damaging().keys()
        damage = document.model_copy(update={"backups": {name: findings[name] for name in sorted(names)}})
        repository.keyring.own.note_damage(damage.model_dump_json().encode() if names else None)
    repository.overwrite(key, body)


def remove_merged(repository: Repository, key: VerificationKey, checks: Checks) -> None:
    """Remove the objects from which `checks` was read. The object under the key now contains their findings."""
    repository.delete_many([other for other in checks.keys if other != key])


def add(
    repository: Repository,
    instance: str,
    when: datetime,
    damage: Mapping[str, tuple[str, ...]],
    by: str,
    digests: Mapping[str, str] | None = None,
) -> None:
    """Record the result of a check other than `verify`: the damage of each name (() if none), and the digests.

    The findings about other names are kept. If this host trusts only signed findings but does not sign, nothing is
    recorded.
    """
    if not repository.keyring.is_believed:
        return
    before = read(repository, instance)
    findings = {name: dict(by_depth) for name, by_depth in before.findings.items()}
    for name, damaged in damage.items():
        records = findings.setdefault(name, {})
        records[Depth.READ] = finding(Depth.READ, when, damaged, records, by, (digests or {}).get(name))
    key = new_key(instance, when)
    write(repository, instance, key, Checks(findings))
    # An account that may not remove objects leaves the earlier objects. The new object repeats their content.
    with contextlib.suppress(RepositoryError):
        remove_merged(repository, key, before)


_DRILLS = 10
"""The number of newest drills to read. Each drill is a separate object."""


def known_damage(repository: Repository, instance: str) -> DamageRegister:
    """Return the damage that is known now, including that of removed backups.

    Raises: RepositoryError if the store is unreachable.
    """
    return register(read(repository, instance), drills.newest(repository, instance, _DRILLS))


def register(checks: Checks, evidence: Sequence[Evidence]) -> DamageRegister:
    """Return the damage in these findings and drills. The drills must be sorted, oldest first."""
    of_backups = [
        KnownDamage(name, DamageKind.STORED, record.since or record.when, record.by, record.damage)
        for name, record in sorted(checks.damaging().items())
    ]
    content: dict[str, KnownDamage] = {}
    sound: dict[str, frozenset[str]] = {}
    for drill in evidence:
        pages = [check for check in drill.checks if check.kind == "pages"]
        damaged = frozenset(check.what for check in pages if check.outcome is Outcome.DAMAGED)
        whole = frozenset(check.what for check in pages if check.finding == ALL_PAGES) - damaged
        sound[drill.backup_id] = sound.get(drill.backup_id, frozenset()) - damaged | whole
        known = content.pop(drill.backup_id, None)
        files = {} if known is None else {name: text for name, text in known.files.items() if name not in whole}
        files |= {check.what: f"{check.what}: {check.finding}" for check in pages if check.what in damaged}
        if files:
            content[drill.backup_id] = KnownDamage(
                drill.backup_id,
                DamageKind.CONTENT,
                known.since if known is not None else drill.finished,
                f"drill {drill.drill_id}" if damaged or known is None else known.by,
                tuple(files.values()),
                files,
            )
    read_whole = frozenset(drill.backup_id for drill in evidence if drill.has_read_all_pages)
    return DamageRegister((*of_backups, *content.values()), sound, read_whole)
