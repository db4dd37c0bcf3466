"""Which backup the next increment builds on, when a full backup is due, and which backups a restore needs.

Lineage is by GUID alone. `planning/order.py` orders backups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.model import backup_time


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


class Why(StrEnum):
    """Why a backup is an increment or a full backup; why a stored backup cannot be its base."""

    INCREMENT = "increment"
    FIRST = "first"
    REQUESTED = "requested"
    CHAIN_AGE = "chain-age"
    CHAIN_LENGTH = "chain-length"
    NO_BASE = "no-base"
    OTHER_VOLUMES = "other-volumes"
    SNAPSHOT_GONE = "snapshot-gone"
    OTHER_FLAGS = "other-flags"
    CHAIN_BROKEN = "chain-broken"
    DAMAGED = "damaged"
    FROM_FUTURE = "from-the-future"
    MORE = "more"


@dataclass(frozen=True)
class Reason:
    """One reason: its kind, and in words."""

    why: Why
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ChainPolicy:
    """When a full backup is due: the chain's full one is `full_every` seconds old, or the chain has `longest` backups.

    None: no such limit.
    """

    full_every: float | None = None
    longest: int | None = None


_NEVER = ChainPolicy()


@dataclass(frozen=True)
class BasePlan(Generic[L]):
    """What the next backup builds on, and why. The last reason decided.

    `base` is a stored backup (None: the next backup is a full backup).
    """

    base: L | None
    reasons: tuple[Reason, ...]

    @property
    def why(self) -> Why:
        """The kind of the reason that decided."""
        return self.reasons[-1].why


def _unusable(
    link: Link, local: Mapping[str, Collection[int]], send_flags: Collection[tuple[str, ...]]
) -> Reason | None:
    roles = {volume.role for volume in link.volumes}
    if roles != set(local):
        text = (
            f"backup {link.backup_id} has volumes {', '.join(sorted(roles))}, the instance has"
            f" {', '.join(sorted(local))}"
        )
        return Reason(Why.OTHER_VOLUMES, text)
    for volume in link.volumes:
        if volume.guid not in local[volume.role]:
            text = (
                f"backup {link.backup_id}: the {volume.role} volume has no snapshot or"
                f" bookmark with GUID {volume.guid} any more"
            )
            return Reason(Why.SNAPSHOT_GONE, text)
        if volume.send_flags not in send_flags or volume.send_flags != link.volumes[0].send_flags:
            text = (
                f"backup {link.backup_id} was sent with flags {' '.join(volume.send_flags)}, which must not change"
                " within a chain"
            )
            return Reason(Why.OTHER_FLAGS, text)
    return None


class Lineage(Generic[L]):
    """Which stored backup each one is an increment of, by GUID.

    One pass over all of them builds it, as there may be many thousands.
    """

    def __init__(self, stored: Sequence[L], damaged: Collection[str] = ()) -> None:
        """`stored` is oldest first.

        Of several backups with the same snapshots (`zsnapdb consolidate` makes a second one) the latest is the base of
        what builds on them; one of `damaged` only if all are.
        """
        self._damaged = frozenset(damaged)
        self._by_guids: dict[frozenset[tuple[str, int | None]], list[L]] = {}
        for link in stored:
            self._by_guids.setdefault(frozenset((volume.role, volume.guid) for volume in link.volumes), []).append(link)

    def base(self, link: L) -> L | None:
        """Return the backup that `link` is an increment of, None if it is a full one.

        DamagedError if it is not stored.
        """
        base_guids = {volume.role: volume.from_guid for volume in link.volumes}
        if all(guid is None for guid in base_guids.values()):
            return None
        same = self._by_guids.get(frozenset(base_guids.items()), ())
        candidates = [candidate for candidate in same if candidate.backup_id != link.backup_id]
        sound = [candidate for candidate in candidates if candidate.backup_id not in self._damaged]
        if candidates:
            return (sound or candidates)[-1]
        guids = ", ".join(f"{role} {guid}" for role, guid in sorted(base_guids.items()))
        raise DamagedError(
            f"backup {link.backup_id} is an increment of snapshots with GUIDs {guids}, and no stored backup has them",
            hint="the chain is broken at that backup; restore an older one, see `zsnapdb list`",
        )

    def chain(self, target: L) -> tuple[L, ...]:
        """Return the backups to receive for `target`, the full one first. DamagedError names the missing link."""
        chain, known = [target], {target.backup_id}
        while (base := self.base(chain[-1])) is not None:
            if base.backup_id in known:
                raise DamagedError(
                    f"the chain of backup {target.backup_id} leads back to {base.backup_id}",
                    hint="manifests were altered; restore another backup",
                )
            chain.append(base)
            known.add(base.backup_id)
        return tuple(reversed(chain))


def _known_damage(chain: Sequence[Link], damaged: Mapping[str, str]) -> Reason | None:
    for link in chain:
        if link.backup_id in damaged:
            return Reason(Why.DAMAGED, f"full: {damaged[link.backup_id]}")
    return None


def _full_is_due(chain: Sequence[Link], policy: ChainPolicy, now: datetime) -> Reason | None:
    first = chain[0].backup_id
    # A clock that was set back makes ages negative: a full one is due later, and the chain grows meanwhile.
    age = (now - backup_time(first)).total_seconds()
    if policy.full_every is not None and age >= policy.full_every:
        text = (
            f"full: the chain's full backup {first} is {age / 86400:.1f} days old, and full_every is"
            f" {policy.full_every / 86400:.1f} days"
        )
        return Reason(Why.CHAIN_AGE, text)
    if policy.longest is not None and len(chain) >= policy.longest:
        return Reason(
            Why.CHAIN_LENGTH, f"full: the chain of {first} has {len(chain)} backups, and longest is {policy.longest}"
        )
    return None


def choose_base(
    stored: Sequence[L],
    local: Mapping[str, Collection[int]],
    send_flags: Collection[tuple[str, ...]],
    *,
    now: datetime,
    policy: ChainPolicy = _NEVER,
    full: bool = False,
    damaged: Mapping[str, str] | None = None,
    future: Collection[str] = (),
) -> BasePlan[L]:
    """Return the newest stored backup that the next one can be an increment of.

    None if a full backup is due, or requested by `full`.

    `stored` is oldest first; `local` gives, per role, the GUIDs of which this host has a snapshot or bookmark. A backup
    whose own chain is broken is no base. Where a full backup is due, older members of the chain are no bases either.
    `damaged` says of each backup that is known to be damaged in the repository what was found: the next backup does not
    build on a chain with one of them. `future` are the ids of backups from the future: they are no bases.

    `send_flags` are those that the next backup may have. An increment has the flags of its base.
    """
    if full:
        return BasePlan(None, (Reason(Why.REQUESTED, "full: requested"),))
    if not stored:
        return BasePlan(None, (Reason(Why.FIRST, "full: the repository holds no backup of this instance yet"),))
    lineage = Lineage(stored, damaged or {})
    reasons: list[Reason] = []
    for link in reversed(stored):
        reason = _unusable(link, local, send_flags)
        if link.backup_id in future:
            reason = Reason(Why.FROM_FUTURE, f"backup {link.backup_id} is from the future")
        if reason is None:
            try:
                chain = lineage.chain(link)
                due = _known_damage(chain, damaged or {}) or _full_is_due(chain, policy, now)
            except DamagedError as error:
                reason = Reason(Why.CHAIN_BROKEN, error.message)
            else:
                increment = Reason(
                    Why.INCREMENT, f"increment of {link.backup_id}: this host still has all its snapshots"
                )
                return BasePlan(None if due else link, (*_short(reasons), due or increment))
        reasons.append(reason)
    return BasePlan(None, (*_short(reasons), Reason(Why.NO_BASE, "full: no stored backup can be a base")))


def _short(reasons: Sequence[Reason]) -> Sequence[Reason]:
    if len(reasons) <= _REASONS_SHOWN:
        return reasons
    return *reasons[:_REASONS_SHOWN], Reason(Why.MORE, f"and so with {len(reasons) - _REASONS_SHOWN} older ones")


def restore_chain(stored: Sequence[L], target: L, damaged: Collection[str] = ()) -> tuple[L, ...]:
    """Return the backups to receive for `target`, the full one first. DamagedError names the missing link.

    A backup of `damaged` is in it only if no other one has the same snapshots.
    """
    return Lineage(stored, damaged).chain(target)


def newest_without(stored: Sequence[L], damaged: str) -> L | None:
    """Return the newest stored backup with a complete chain that does not need the backup `damaged`.

    None if every backup needs it.
    """
    lineage = Lineage(stored)
    for link in reversed(stored):
        try:
            if damaged not in {part.backup_id for part in lineage.chain(link)}:
                return link
        except DamagedError:
            continue
    return None
