"""Which base an increment takes, and which backups a restore needs. Lineage is by GUID alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from zsnapdb.errors import DamagedError


class VolumeLink(Protocol):
    """One volume of a stored backup, as far as lineage goes."""

    @property
    def role(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    @property
    def guid(self) -> int: ...
    @property
    def from_guid(self) -> int | None: ...
    @property
    def send_flags(self) -> tuple[str, ...]: ...


class Link(Protocol):
    """A stored backup, as far as lineage goes."""

    @property
    def backup_id(self) -> str: ...
    @property
    def volumes(self) -> Sequence[VolumeLink]: ...


L = TypeVar("L", bound=Link)

_REASONS_SHOWN = 5


@dataclass(frozen=True)
class BasePlan(Generic[L]):
    """What the next backup builds on: a stored backup, or nothing (a full one), and why."""

    base: L | None
    reasons: tuple[str, ...]


def _unusable(link: Link, local: Mapping[str, Collection[int]], send_flags: tuple[str, ...]) -> str | None:
    roles = {volume.role for volume in link.volumes}
    if roles != set(local):
        return f"backup {link.backup_id} has volumes {', '.join(sorted(roles))}, the instance has {', '.join(sorted(local))}"
    for volume in link.volumes:
        if volume.guid not in local[volume.role]:
            return f"backup {link.backup_id}: no snapshot or bookmark with GUID {volume.guid} is left on the {volume.role} volume"
        if volume.send_flags != send_flags:
            return f"backup {link.backup_id} was sent with flags {' '.join(volume.send_flags)}, which must not change within a chain"
    return None


class Lineage(Generic[L]):
    """Which stored backup each one is an increment of, found by GUID in one pass over all of them (there may be many thousands)."""

    def __init__(self, stored: Sequence[L]) -> None:
        """`stored` is oldest first; of two backups with the same snapshots the later one is preferred as a base."""
        self._by_guids: dict[frozenset[tuple[str, int | None]], list[L]] = {}
        for link in stored:
            self._by_guids.setdefault(frozenset((volume.role, volume.guid) for volume in link.volumes), []).append(link)

    def base(self, link: L) -> L | None:
        """Return the backup that `link` is an increment of, None if it is a full one. DamagedError if it is not stored."""
        wanted = {volume.role: volume.from_guid for volume in link.volumes}
        if all(guid is None for guid in wanted.values()):
            return None
        for found in reversed(self._by_guids.get(frozenset(wanted.items()), ())):
            if found.backup_id != link.backup_id:
                return found
        guids = ", ".join(f"{role} {guid}" for role, guid in sorted(wanted.items()))
        raise DamagedError(
            f"backup {link.backup_id} is an increment of snapshots with GUIDs {guids}, and no stored backup has them",
            hint="the chain is broken there; restore an older backup, see `zsnapdb list`",
        )

    def chain(self, target: L) -> tuple[L, ...]:
        """Return the backups to receive for `target`, the full one first. DamagedError names the missing link."""
        chain, known = [target], {target.backup_id}
        while (base := self.base(chain[-1])) is not None:
            if base.backup_id in known:
                raise DamagedError(
                    f"the chain of backup {target.backup_id} leads back to {base.backup_id}", hint="manifests were altered; restore another backup"
                )
            chain.append(base)
            known.add(base.backup_id)
        return tuple(reversed(chain))


def choose_base(stored: Sequence[L], local: Mapping[str, Collection[int]], send_flags: tuple[str, ...]) -> BasePlan[L]:
    """Return the newest stored backup that the next one can be an increment of.

    `stored` is oldest first; `local` gives, per role, the GUIDs of which a snapshot or bookmark exists here.
    A backup whose own chain has a hole is passed over.
    """
    reasons: list[str] = []
    lineage = Lineage(stored)
    for link in reversed(stored):
        why = _unusable(link, local, send_flags)
        if why is None:
            try:
                lineage.chain(link)
            except DamagedError as error:
                why = error.message
        if why is None:
            return BasePlan(link, (*reasons, f"increment of {link.backup_id}: all its snapshots are still known here"))
        reasons.append(why)
    if len(reasons) > _REASONS_SHOWN:
        reasons[_REASONS_SHOWN:] = [f"and so with {len(reasons) - _REASONS_SHOWN} older ones"]
    return BasePlan(None, (*reasons, "full: the repository holds no backup of this instance yet" if not stored else "full: no stored backup can be a base"))


def restore_chain(stored: Sequence[L], target: L) -> tuple[L, ...]:
    """Return the backups to receive for `target`, the full one first. DamagedError names the missing link."""
    return Lineage(stored).chain(target)


def newest_without(stored: Sequence[L], damaged: str) -> L | None:
    """Return the newest stored backup whose chain is whole and does not need the backup with that id; None if all do."""
    lineage = Lineage(stored)
    for link in reversed(stored):
        try:
            if damaged not in {part.backup_id for part in lineage.chain(link)}:
                return link
        except DamagedError:
            continue
    return None
