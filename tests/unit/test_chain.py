"""Lineage: which base an increment takes, which backups a restore needs. By GUID, with reasons."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from zsnapdb.errors import DamagedError
from zsnapdb.planning.chain import choose_base, newest_without, restore_chain

FLAGS = ("-L",)


@dataclass(frozen=True)
class Volume:
    role: str
    guid: int
    from_guid: int | None
    dataset: str = "tank/x"
    send_flags: tuple[str, ...] = FLAGS


@dataclass(frozen=True)
class Stored:
    backup_id: str
    volumes: tuple[Volume, ...]


def stored(name: str, guid: int, base: int | None) -> Stored:
    return Stored(name, (Volume("data", guid, base), Volume("parent", guid + 1000, base + 1000 if base else None)))


CHAIN = [stored("a", 1, None), stored("b", 2, 1), stored("c", 3, 2)]


def local(*guids: int) -> dict[str, set[int]]:
    return {"data": set(guids), "parent": {guid + 1000 for guid in guids}}


def test_the_newest_backup_whose_snapshots_are_known_here_is_the_base() -> None:
    plan = choose_base(CHAIN, local(1, 2, 3), FLAGS)
    assert plan.base is CHAIN[2]
    plan = choose_base(CHAIN, local(1, 2), FLAGS)
    assert plan.base is CHAIN[1]
    assert "no snapshot or bookmark with GUID 3" in plan.reasons[0]


def test_without_any_backup_the_first_is_full_and_says_so() -> None:
    plan = choose_base([], local(1), FLAGS)
    assert plan.base is None
    assert plan.reasons == ("full: the repository holds no backup of this instance yet",)


def test_another_set_of_volumes_makes_a_full_one() -> None:
    plan = choose_base(CHAIN, {"data": {1, 2, 3}}, FLAGS)
    assert plan.base is None
    assert "has volumes data, parent, the instance has data" in plan.reasons[0]


def test_send_flags_never_change_within_a_chain() -> None:
    plan = choose_base(CHAIN, local(1, 2, 3), ("-L", "-c"))
    assert plan.base is None
    assert "must not change within a chain" in plan.reasons[0]


def test_a_backup_whose_own_chain_has_a_hole_is_no_base() -> None:
    plan = choose_base([CHAIN[0], CHAIN[2]], local(1, 3), FLAGS)
    assert plan.base is CHAIN[0]


def test_a_restore_receives_the_full_backup_first() -> None:
    assert [link.backup_id for link in restore_chain(CHAIN, CHAIN[2])] == ["a", "b", "c"]


def test_a_restore_of_a_full_backup_needs_nothing_else() -> None:
    assert restore_chain(CHAIN, CHAIN[0]) == (CHAIN[0],)


def test_a_broken_chain_names_the_missing_link() -> None:
    with pytest.raises(DamagedError, match="backup c is an increment of snapshots with GUIDs data 2, parent 1002"):
        restore_chain([CHAIN[0], CHAIN[2]], CHAIN[2])


def test_a_chain_that_leads_in_a_circle_ends_with_an_error() -> None:
    circle = [stored("a", 1, 2), stored("b", 2, 1)]
    with pytest.raises(DamagedError):
        restore_chain(circle, circle[1])


def test_after_damage_the_newest_backup_that_does_not_need_the_damaged_one_is_named() -> None:
    full, middle, last, other = stored("1", 1, None), stored("2", 2, 1), stored("3", 3, 2), stored("4", 9, None)
    assert newest_without([full, middle, last], "2") == full
    assert newest_without([full, middle, last], "3") == middle
    assert newest_without([full, middle, other, last], "1") == other
    assert newest_without([full, middle, last], "1") is None
    assert newest_without([middle, last], "none") is None
