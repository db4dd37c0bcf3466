"""Chooses the backup, the chain and the new id for `zsnapdb consolidate`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from zsnapdb.base.domain_types import backup_time, new_backup_id
from zsnapdb.base.errors import DamagedError, NotFound, PreflightError
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.creation_order import PlacedLink
from zsnapdb.planning.damage_register import DamageRegister

LATEST = "latest"
_ROOM = 256
"""The number of free ids that must follow the original id in the same second. So two runs rarely choose the same id."""
_SUFFIXES = 0x10000


class ChainMember(PlacedLink, Protocol):
    """A stored backup with the facts that determine its place in the order and whether it is a full backup."""

    @property
    def is_full(self) -> bool: ...


S = TypeVar("S", bound=ChainMember)


@dataclass(frozen=True)
class Consolidation(Generic[S]):
    """The chain that becomes one full backup, oldest backup first, with the id of the new backup and the reasons."""

    chain: tuple[S, ...]
    backup_id: str
    reasons: tuple[str, ...]

    @property
    def original(self) -> S:
        """The last backup of the chain. The new backup contains the same snapshots."""
        return self.chain[-1]


def choose(
    stored: Sequence[S], requested: str, damage: DamageRegister, unchosen: Mapping[str, str], randomness: int
) -> Consolidation[S]:
    """Return the consolidation of the requested backup or, for `latest`, of the newest backup with a complete chain.

    The argument `stored` contains the backups, oldest first. The argument `unchosen` contains the reason for each
    backup that `latest` must not choose. Raises NotFound if there is no such backup, PreflightError if a full backup of
    its snapshots is stored, and DamagedError if its chain is broken or known to be damaged.
    """
    chain, passed = (
        _newest(stored, damage, unchosen) if requested == LATEST else (_find_requested(stored, requested, damage), ())
    )
    original = chain[-1]
    full = _full_of(stored, original, damage)
    if full is not None:
        twin = "" if full.backup_id == original.backup_id else f" of the same snapshots as {original.backup_id}"
        raise PreflightError(
            f"{full.backup_id} is a full backup{twin}; there is nothing to consolidate",
            hint="consolidate again when increments have been stored; full_every counts from this backup",
        )
    known = damage.of_chain([link.backup_id for link in chain])
    if known:
        raise DamagedError(
            f"the chain of {original.backup_id} is known to be damaged: {known[0].describe()}",
            hint="make a full backup of the server with `zsnapdb backup --full`, or name a backup before the damage."
            " After a repair, run `zsnapdb verify --deep` or a drill, which clears the damage",
        )
    what = "the newest backup with a complete chain" if requested == LATEST else "the requested backup"
    reasons = (*passed, f"{original.backup_id} is {what}; its restore needs {len(chain)} backups")
    return Consolidation(chain, id_after(original.backup_id, randomness), reasons)


def _newest(
    stored: Sequence[S], damage: DamageRegister, unchosen: Mapping[str, str]
) -> tuple[tuple[S, ...], tuple[str, ...]]:
    """Return the chain of the newest backup with a complete chain, and why newer backups were not chosen."""
    passed: list[str] = []
    for link in reversed(stored):
        if link.backup_id in unchosen:
            passed.append(f"{link.backup_id} is passed over: {unchosen[link.backup_id]}")
            continue
        try:
            return restore_chain(stored, link, damage.stored()), tuple(passed)
        except DamagedError as error:
            passed.append(f"{link.backup_id} is passed over: {error.message}")
    raise NotFound(
        "there is no backup with a complete chain; nothing was consolidated" + "".join(f"; {why}" for why in passed),
        hint="see `zsnapdb list` and `zsnapdb verify`; `zsnapdb backup --full` begins a new chain",
    )


def _find_requested(stored: Sequence[S], requested: str, damage: DamageRegister) -> tuple[S, ...]:
    link = next((one for one in stored if one.backup_id == requested), None)
    if link is None:
        raise NotFound(f"there is no backup {requested} that can be read", hint="see `zsnapdb list`")
    return restore_chain(stored, link, damage.stored())


def _full_of(stored: Sequence[S], original: S, damage: DamageRegister) -> S | None:
    """Return a full backup with the same snapshots and without known damage; None if there is none."""
    guids = {(volume.role, volume.guid) for volume in original.volumes}
    bad = damage.stored()
    return next(
        (
            link
            for link in reversed(stored)
            if link.is_full
            and link.backup_id not in bad
            and {(volume.role, volume.guid) for volume in link.volumes} == guids
        ),
        None,
    )


def id_after(backup_id: str, randomness: int) -> str:
    """Return an id for another backup of the same snapshots.

    The new id is in the same second, directly after `backup_id`. So retention and searches by time use the time of the
    snapshots, not that of the consolidation. If the second has too few free ids, the new id is in the next second.
    Raises PreflightError if `backup_id` contains no time.
    """
    first = int(backup_id[-4:], 16) + 1
    if _SUFFIXES - first >= _ROOM:
        return f"{backup_id[:-4]}{first + randomness % (_SUFFIXES - first):04x}"
    try:
        return new_backup_id(backup_time(backup_id) + timedelta(seconds=1), randomness)
    except (ValueError, OverflowError) as error:
        raise PreflightError(
            f"the id {backup_id} contains no time", hint="somebody wrote this backup by hand; name another one"
        ) from error
