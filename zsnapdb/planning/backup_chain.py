"""Chooses the base of the next increment, decides when a full backup is due, and finds the chain for a restore.

Only the GUIDs of snapshots link backups. `planning/creation_order.py` orders the backups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import DamagedError


class VolumeLink(Protocol):
    """The facts about one volume of a stored backup that link the backup to its base."""

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
    """The facts about a stored backup that link it to its base."""

    @property
    def backup_id(self) -> str: ...
    @property
    def volumes(self) -> Sequence[VolumeLink]: ...


L = TypeVar("L", bound=Link)

_REASONS_SHOWN = 5

OTHER_ADDRESS_HINT = (
    "check the name of the instance, and `url` of its repository; `zsnapdb list --instances` lists the instances that"
    " each repository has"
)
"""The hint if a restore finds no backups.

Usually the address of the repository or the name of the instance is wrong.
"""


class ReasonKind(StrEnum):
    """The kind of a reason: for an increment, for a full backup, or against a stored backup as the base."""

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
    UNCHOSEN = "unchosen"
    MORE = "more"


@dataclass(frozen=True)
class Reason:
    """A reason, with its kind and a text for the user."""

    why: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ChainPolicy:
    """The limits of a chain: its full backup's age in seconds, and its number of backups. None means no limit.

    The next backup is a full backup as soon as one limit is reached.
    """

    full_every: float | None = None
    longest: int | None = None


_NEVER = ChainPolicy()


@dataclass(frozen=True)
class BasePlan(Generic[L]):
    """The base of the next backup (None for a full backup), and the reasons. The last reason was decisive."""

    base: L | None
    reasons: tuple[Reason, ...]

    @property
    def why(self) -> ReasonKind:
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
        return Reason(ReasonKind.OTHER_VOLUMES, text)
    for volume in link.volumes:
        if volume.guid not in local[volume.role]:
            text = (
                f"backup {link.backup_id}: the {volume.role} volume has no snapshot or"
                f" bookmark with GUID {volume.guid} any more"
            )
            return Reason(ReasonKind.SNAPSHOT_GONE, text)
        if volume.send_flags not in send_flags or volume.send_flags != link.volumes[0].send_flags:
            text = (
                f"backup {link.backup_id} was sent with flags {' '.join(volume.send_flags)}, which must not change"
                " within a chain"
            )
            return Reason(ReasonKind.OTHER_FLAGS, text)
    return None


class Lineage(Generic[L]):
    """Finds the base of each stored backup by snapshot GUID.

    The index of the GUIDs is built in one pass, because there may be many thousands of backups.
    """

    def __init__(self, stored: Sequence[L], damaged: Collection[str] = ()) -> None:
        """The list `stored` contains the stored backups, oldest first.

        Several backups can contain the same snapshots, for example after `zsnapdb consolidate`. Increments use the
        latest of these backups as their base. A backup in `damaged` is used only if all backups with the same snapshots
        are damaged.
        """
        self._damaged = frozenset(damaged)
        self._by_guids: dict[frozenset[tuple[str, int | None]], list[L]] = {}
        for link in stored:
            self._by_guids.setdefault(frozenset((volume.role, volume.guid) for volume in link.volumes), []).append(link)

    def base(self, link: L) -> L | None:
        """Return the base of the backup `link`; None if `link` is a full backup.

        Raises DamagedError if the repository does not contain the base.
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
        """Return the backups that must be received to restore `target`, the full backup first.

        Raises DamagedError if a backup of the chain is missing, or if the chain is a loop.
        """
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
            return Reason(ReasonKind.DAMAGED, f"full: {damaged[link.backup_id]}")
    return None


def _full_is_due(chain: Sequence[Link], policy: ChainPolicy, now: datetime) -> Reason | None:
    first = chain[0].backup_id
    # If the clock was set back, ages are negative. In that case the full backup is due later, and the chain grows until
    # then.
    age = (now - backup_time(first)).total_seconds()
    if policy.full_every is not None and age >= policy.full_every:
        text = (
            f"full: the chain's full backup {first} is {age / 86400:.1f} days old, and full_every is"
            f" {policy.full_every / 86400:.1f} days"
        )
        return Reason(ReasonKind.CHAIN_AGE, text)
    if policy.longest is not None and len(chain) >= policy.longest:
        return Reason(
            ReasonKind.CHAIN_LENGTH,
            f"full: the chain of {first} has {len(chain)} backups, and longest is {policy.longest}",
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
    unchosen: Mapping[str, str] | None = None,
) -> BasePlan[L]:
    """Return the plan with the newest stored backup that can be the base of the next backup.

    If a full backup is needed, the plan contains no base. A backup with a broken chain cannot be the base. If a full
    backup is due, older backups of the current chain cannot be the base either.

    - `stored`: the backups, oldest first
    - `local`: for each role, the GUIDs of the snapshots and bookmarks on this host
    - `send_flags`: the flags that the next backup may use; an increment uses the flags of its base
    - `full`: whether the user requested a full backup
    - `damaged`: the findings about damaged backups in the repository, by id; a chain with a damaged backup is not
      continued
    - `unchosen`: the reasons against foreign backups and backups from the future, by id
    """
    if full:
        return BasePlan(None, (Reason(ReasonKind.REQUESTED, "full: requested"),))
    if not stored:
        return BasePlan(None, (Reason(ReasonKind.FIRST, "full: the repository holds no backup of this instance yet"),))
    lineage = Lineage(stored, damaged or {})
    reasons: list[Reason] = []
    for link in reversed(stored):
        reason = _unusable(link, local, send_flags)
        if unchosen is not None and link.backup_id in unchosen:
            reason = Reason(ReasonKind.UNCHOSEN, f"backup {link.backup_id}: {unchosen[link.backup_id]}")
        if reason is None:
            try:
                chain = lineage.chain(link)
                due = _known_damage(chain, damaged or {}) or _full_is_due(chain, policy, now)
            except DamagedError as error:
                reason = Reason(ReasonKind.CHAIN_BROKEN, error.message)
            else:
                increment = Reason(
                    ReasonKind.INCREMENT, f"increment of {link.backup_id}: this host still has all its snapshots"
                )
                return BasePlan(None if due else link, (*_short(reasons), due or increment))
        reasons.append(reason)
    return BasePlan(None, (*_short(reasons), Reason(ReasonKind.NO_BASE, "full: no stored backup can be a base")))


def _short(reasons: Sequence[Reason]) -> Sequence[Reason]:
    if len(reasons) <= _REASONS_SHOWN:
        return reasons
    return *reasons[:_REASONS_SHOWN], Reason(ReasonKind.MORE, f"and so with {len(reasons) - _REASONS_SHOWN} older ones")


def restore_chain(stored: Sequence[L], target: L, damaged: Collection[str] = ()) -> tuple[L, ...]:
    """Return the backups that must be received to restore `target`, the full backup first.

    A backup in `damaged` is used only if no other backup has the same snapshots. Raises DamagedError if a backup of the
    chain is missing.
    """
    return Lineage(stored, damaged).chain(target)


def newest_without(stored: Sequence[L], damaged: str, unchosen: Collection[str] = ()) -> L | None:
    """Return the newest backup that has a complete chain without the backup `damaged`; None if there is no such backup.

    Backups in `unchosen` are skipped.
    """
    lineage = Lineage(stored)
    for link in reversed(stored):
        if link.backup_id in unchosen:
            continue
        try:
            if damaged not in {part.backup_id for part in lineage.chain(link)}:
                return link
        except DamagedError:
            continue
    return None
