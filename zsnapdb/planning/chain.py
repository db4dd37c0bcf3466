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


def choose_base(stored: Sequence[L], local: Mapping[str, Collection[int]], send_flags: tuple[str, ...]) -> BasePlan[L]:
    """Return the newest stored backup that the next one can be an increment of.

    `stored` is oldest first; `local` has, per role, the GUIDs of which a snapshot or bookmark exists here.
    A backup whose own chain has a hole is passed over.
    """
    reasons: list[str] = []
    for link in reversed(stored):
        why = _unusable(link, local, send_flags)
        if why is None:
            try:
                restore_chain(stored, link)
            except DamagedError as error:
                why = error.message
        if why is None:
            return BasePlan(link, (*reasons, f"increment of {link.backup_id}: all its snapshots are still known here"))
        reasons.append(why)
    return BasePlan(None, (*reasons, "full: the repository holds no backup of this instance yet" if not stored else "full: no stored backup can be a base"))


def restore_chain(stored: Sequence[L], target: L) -> tuple[L, ...]:
    """Return the backups to receive for `target`, the full one first. DamagedError names the missing link."""
    chain = [target]
    while True:
        current = chain[0]
        wanted = {volume.role: volume.from_guid for volume in current.volumes}
        if all(guid is None for guid in wanted.values()):
            return tuple(chain)
        before = [link for link in stored if {volume.role: volume.guid for volume in link.volumes} == wanted and link not in chain]
        if not before:
            guids = ", ".join(f"{role} {guid}" for role, guid in sorted(wanted.items()))
            raise DamagedError(
                f"backup {current.backup_id} is an increment of snapshots with GUIDs {guids}, and no stored backup has them",
                hint="the chain is broken there; restore an older backup, see `zsnapdb list`",
            )
        chain.insert(0, before[-1])
