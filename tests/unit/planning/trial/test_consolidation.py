"""Which chain becomes a full backup, under an id that keeps its place in time; and what is refused, with a hint."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import backup_time, is_backup_id, new_backup_id
from zsnapdb.base.errors import DamagedError, NotFound, PreflightError
from zsnapdb.planning.creation_order import in_order
from zsnapdb.planning.damage_register import DamageKind, DamageRegister, KnownDamage
from zsnapdb.planning.repository.consolidation import LATEST, Consolidation, choose, id_after

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@dataclass(frozen=True)
class Volume:
    role: str
    guid: int
    from_guid: int | None
    dataset: str = "tank/x"
    send_flags: tuple[str, ...] = ("-L",)


@dataclass(frozen=True)
class Stored:
    backup_id: str
    volumes: tuple[Volume, ...]
    createtxg: int
    pool_guid: int = 1
    sequence: int | None = None

    @property
    def is_full(self) -> bool:
        return self.volumes[0].from_guid is None


def stored(hours: int, guid: int, base: int | None, suffix: int = 0) -> Stored:
    return Stored(new_backup_id(NOW + timedelta(hours=hours), suffix), (Volume("data", guid, base),), guid)


FULL, FIRST, SECOND = stored(1, 1, None), stored(2, 2, 1), stored(3, 3, 2)
CHAIN = [FULL, FIRST, SECOND]


def damaged(backup_id: str) -> DamageRegister:
    return DamageRegister((KnownDamage(backup_id, DamageKind.STORED, NOW, "verify", ("a chunk is missing",)),))


def chosen(
    links: list[Stored],
    requested: str = LATEST,
    damage: DamageRegister | None = None,
    unchosen: dict[str, str] | None = None,
) -> Consolidation[Stored]:
    return choose(in_order(links), requested, damage or DamageRegister(), unchosen or {}, 7)


def test_the_newest_backup_is_chosen_with_its_whole_chain_and_says_why() -> None:
    plan = chosen(CHAIN)
    assert (plan.chain, plan.original) == (tuple(CHAIN), SECOND)
    assert plan.reasons == (
        f"{SECOND.backup_id} is the newest backup with a complete chain; its restore needs 3 backups",
    )


def test_a_named_backup_is_chosen_though_newer_ones_build_on_it() -> None:
    assert chosen(CHAIN, FIRST.backup_id).chain == (FULL, FIRST)


def test_newer_backups_with_a_broken_chain_and_from_the_future_are_passed_over_and_named() -> None:
    broken, future = stored(4, 9, 8), stored(999999, 4, 3)
    plan = chosen([*CHAIN, broken, future], unchosen={future.backup_id: "it is from the future"})
    assert plan.original == SECOND
    assert [reason.split(":")[0] for reason in plan.reasons[:2]] == [
        f"{broken.backup_id} is passed over",
        f"{future.backup_id} is passed over",
    ]


@pytest.mark.parametrize("requested", [LATEST, FULL.backup_id])
def test_a_full_backup_is_refused(requested: str) -> None:
    with pytest.raises(PreflightError, match="is a full backup; there is nothing to consolidate") as refusal:
        chosen([FULL], requested)
    assert "full_every counts from this backup" in refusal.value.hint


def test_a_backup_that_was_consolidated_is_refused_unless_the_full_one_is_damaged() -> None:
    twin = stored(3, 3, None, 1)
    with pytest.raises(PreflightError, match=f"{twin.backup_id} is a full backup of the same snapshots"):
        chosen([*CHAIN, twin], SECOND.backup_id)
    assert chosen([*CHAIN, twin], SECOND.backup_id, damaged(twin.backup_id)).chain == tuple(CHAIN)


def test_a_chain_is_taken_from_the_last_full_backup_on() -> None:
    twin, third = stored(3, 3, None, 1), stored(4, 4, 3)
    assert chosen([*CHAIN, twin, third]).chain == (twin, third)


def test_without_a_complete_chain_nothing_is_consolidated() -> None:
    with pytest.raises(NotFound, match="no backup with a complete chain") as refusal:
        chosen(CHAIN[1:])
    assert "--full" in refusal.value.hint
    with pytest.raises(DamagedError, match="no stored backup has them"):
        chosen(CHAIN[1:], SECOND.backup_id)
    with pytest.raises(NotFound, match="no backup 20991101T000000Z-0000"):
        chosen(CHAIN, "20991101T000000Z-0000")


def test_a_chain_that_is_known_to_be_damaged_is_refused() -> None:
    with pytest.raises(DamagedError, match="known to be damaged") as refusal:
        chosen(CHAIN, damage=damaged(FIRST.backup_id))
    assert "zsnapdb backup --full" in refusal.value.hint


moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC))


@given(moment=moments, suffix=st.integers(0, 0xFFFF), randomness=st.integers(0, 0xFFFF))
def test_the_new_id_comes_right_after_that_of_the_original(moment: datetime, suffix: int, randomness: int) -> None:
    original = new_backup_id(moment, suffix)
    made = id_after(original, randomness)
    assert is_backup_id(made)
    assert made > original
    assert backup_time(made) - moment <= timedelta(seconds=suffix > 0xFF00 - 1)


def test_an_id_without_a_time_and_without_room_after_it_is_refused() -> None:
    with pytest.raises(PreflightError, match="contains no time"):
        id_after("20269999T999999Z-ffff", 1)
