"""What is known of each backup from verifying it: when it was last found whole, and what is wrong with it.

A run of verify writes one object; readers put all of them together. A run that ends well writes what it read of the
others into its own and removes those, so there are few. Runs that overlap lose nothing: each removes only what it has
read.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.errors import NotThere
from zsnapdb.repository import layout
from zsnapdb.repository.layout import VerificationKey
from zsnapdb.repository.repository import Repository


class Depth(StrEnum):
    """How a backup was looked at: its objects' presence and sizes by listing, or every byte by reading."""

    LISTED = "listed"
    READ = "read"


class VerificationRecord(BaseModel):
    """What was found at one time (UTC); no damage means that all was well."""

    model_config = ConfigDict(frozen=True)

    when: datetime
    damage: tuple[str, ...] = ()


class _File(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: int = 1
    backups: dict[str, dict[Depth, VerificationRecord]]


@dataclass(frozen=True)
class Checks:
    """The latest finding of each depth, by backup id; and the objects it was read from."""

    findings: Mapping[str, Mapping[Depth, VerificationRecord]] = field(default_factory=dict)
    keys: Sequence[VerificationKey] = ()

    def damaged(self) -> dict[str, tuple[str, ...]]:
        """Return what is wrong, by id.

        What reading found, only reading clears; what listing found, a later check of either kind.
        """
        found = {}
        for name, by_depth in self.findings.items():
            listed, read = by_depth.get(Depth.LISTED), by_depth.get(Depth.READ)
            damage = read.damage if read is not None else ()
            if not damage and listed is not None and (read is None or read.when <= listed.when):
                damage = listed.damage
            if damage:
                found[name] = damage
        return found

    def whole_since(self, name: str, depth: Depth) -> datetime | None:
        """Return when the backup was last found whole at least that deep; None if never, or if damage is known."""
        if name in self.damaged():
            return None
        deep_enough = [d for d in Depth if d is depth or d is Depth.READ]
        times = [
            finding.when
            for d, finding in self.findings.get(name, {}).items()
            if d in deep_enough and not finding.damage
        ]
        return max(times, default=None)

    def only(self, names: Collection[str]) -> Checks:
        """Return these without backups that are gone."""
        return Checks({name: found for name, found in self.findings.items() if name in names}, self.keys)


def _merged(
    one: Mapping[str, Mapping[Depth, VerificationRecord]], two: Mapping[str, Mapping[Depth, VerificationRecord]]
) -> dict[str, dict[Depth, VerificationRecord]]:
    merged = {name: dict(found) for name, found in one.items()}
    for name, by_depth in two.items():
        mine = merged.setdefault(name, {})
        for depth, finding in by_depth.items():
            if depth not in mine or mine[depth].when <= finding.when:
                mine[depth] = finding
    return merged


def read(repository: Repository, instance: str) -> Checks:
    """Return all that is known. An object that cannot be read tells nothing: what it told is checked again."""
    findings: dict[str, dict[Depth, VerificationRecord]] = {}
    keys = []
    for listed in repository.list(layout.verifications(instance)):
        try:
            document = _File.model_validate_json(repository.get(listed.key))
        except (ValidationError, NotThere):
            continue
        keys.append(listed.key)
        findings = _merged(findings, document.backups)
    return Checks(findings, tuple(keys))


def new_key(instance: str, when: datetime) -> VerificationKey:
    """Return the key of a new object for findings."""
    return layout.verification(instance, when, secrets.randbits(32))


def write(repository: Repository, key: VerificationKey, checks: Checks) -> None:
    """Write the findings under the key; nothing else is removed."""
    document = _File(backups={name: dict(found) for name, found in checks.findings.items()})
    repository.overwrite(key, document.model_dump_json().encode())


def remove_merged(repository: Repository, key: VerificationKey, checks: Checks) -> None:
    """Remove the objects that `checks` was read from, which are in the one under the key now."""
    repository.delete_many([other for other in checks.keys if other != key])
