"""Lineage: which base an increment takes, when a full one is due, which backups a restore needs.

By GUID, with reasons.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.backup_chain import BasePlan, ChainPolicy, ReasonKind, choose_base, newest_without, restore_chain

FLAGS = ("-L",)
START = datetime(2026, 11, 1, tzinfo=UTC)
DAY = 86400.0


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


def stored(hours: float, guid: int, base: int | None) -> Stored:
    name = new_backup_id(START + timedelta(hours=hours), guid)
    return Stored(name, (Volume("data", guid, base), Volume("parent", guid + 1000, base + 1000 if base else None)))


CHAIN = [stored(1, 1, None), stored(2, 2, 1), stored(3, 3, 2)]
A, B, C = (link.backup_id for link in CHAIN)


def local(*guids: int) -> dict[str, set[int]]:
    return {"data": set(guids), "parent": {guid + 1000 for guid in guids}}


def choose(
    chain: list[Stored], known: dict[str, set[int]], *flags: tuple[str, ...], hours: float = 4, **more: object
) -> BasePlan[Stored]:
    now = START + timedelta(hours=hours)
    return choose_base(chain, known, flags or (FLAGS,), now=now, **more)  # type: ignore[arg-type]


def test_the_newest_backup_whose_snapshots_are_known_here_is_the_base() -> None:
    plan = choose(CHAIN, local(1, 2, 3))
    assert (plan.base, plan.why) == (CHAIN[2], ReasonKind.INCREMENT)
    plan = choose(CHAIN, local(1, 2))
    assert plan.base is CHAIN[1]
    assert plan.reasons[0].why is ReasonKind.SNAPSHOT_GONE
    assert "no snapshot or bookmark with GUID 3" in plan.reasons[0].text


def test_without_any_backup_the_first_is_full_and_says_so() -> None:
    plan = choose([], local(1))
    assert (plan.base, plan.why) == (None, ReasonKind.FIRST)
    assert str(plan.reasons[0]) == "full: the repository holds no backup of this instance yet"


def test_a_full_one_can_be_asked_for() -> None:
    assert choose(CHAIN, local(1, 2, 3), full=True).why is ReasonKind.REQUESTED


def test_another_set_of_volumes_makes_a_full_one() -> None:
    plan = choose(CHAIN, {"data": {1, 2, 3}})
    assert (plan.base, plan.why, plan.reasons[0].why) == (None, ReasonKind.NO_BASE, ReasonKind.OTHER_VOLUMES)
    assert "has volumes data, parent, the instance has data" in plan.reasons[0].text


def test_send_flags_never_change_within_a_chain() -> None:
    plan = choose(CHAIN, local(1, 2, 3), ("-L", "-c"))
    assert (plan.base, plan.reasons[0].why) == (None, ReasonKind.OTHER_FLAGS)
    assert choose(CHAIN, local(1, 2, 3), ("-L", "-c"), FLAGS).base is CHAIN[2]
    mixed = replace(CHAIN[2], volumes=(CHAIN[2].volumes[0], replace(CHAIN[2].volumes[1], send_flags=("-L", "-c"))))
    plan = choose([*CHAIN[:2], mixed], local(1, 2, 3), ("-L", "-c"), FLAGS)
    assert (plan.base, plan.reasons[0].why) == (CHAIN[1], ReasonKind.OTHER_FLAGS)


def test_a_backup_whose_own_chain_has_a_hole_is_no_base() -> None:
    plan = choose([CHAIN[0], CHAIN[2]], local(1, 3))
    assert (plan.base, plan.reasons[0].why) == (CHAIN[0], ReasonKind.CHAIN_BROKEN)


def test_a_full_one_is_due_when_the_chain_is_old_or_long() -> None:
    assert choose(CHAIN, local(3), hours=1 + 24, policy=ChainPolicy(full_every=DAY)).why is ReasonKind.CHAIN_AGE
    assert choose(CHAIN, local(3), hours=0.99 + 24, policy=ChainPolicy(full_every=DAY)).base is CHAIN[2]
    assert choose(CHAIN, local(3), policy=ChainPolicy(longest=3)).why is ReasonKind.CHAIN_LENGTH
    assert choose(CHAIN, local(3), policy=ChainPolicy(longest=4)).base is CHAIN[2]


def test_where_a_full_one_is_due_an_older_member_of_the_chain_is_no_way_around() -> None:
    assert choose(CHAIN, local(1, 2, 3), policy=ChainPolicy(longest=3)).base is None


def test_a_clock_that_was_set_back_makes_no_full_one_due() -> None:
    assert choose(CHAIN, local(3), hours=-1000, policy=ChainPolicy(full_every=DAY)).base is CHAIN[2]


def test_a_backup_from_the_future_is_no_base_but_may_lie_in_the_chain_of_one() -> None:
    assert choose(CHAIN, local(2, 3), unchosen={C: "it is foreign"}).base is CHAIN[1]
    assert choose(CHAIN, local(2, 3), unchosen={C: "it is from the future"}).reasons[0].why is ReasonKind.UNCHOSEN
    assert choose(CHAIN, local(2, 3), unchosen={B: "it is foreign"}).base is CHAIN[2]


def test_thousands_of_backups_that_are_no_base_are_not_all_listed() -> None:
    many = [stored(n / 100, n + 1, None) for n in range(1000)]
    assert [r.why for r in choose(many, local()).reasons[-2:]] == [ReasonKind.MORE, ReasonKind.NO_BASE]


def test_a_restore_receives_the_full_backup_first() -> None:
    assert [link.backup_id for link in restore_chain(CHAIN, CHAIN[2])] == [A, B, C]


def test_a_restore_of_a_full_backup_needs_nothing_else() -> None:
    assert restore_chain(CHAIN, CHAIN[0]) == (CHAIN[0],)


def test_a_broken_chain_names_the_missing_link() -> None:
    with pytest.raises(DamagedError, match=f"backup {C} is an increment of snapshots with GUIDs data 2, parent 1002"):
        restore_chain([CHAIN[0], CHAIN[2]], CHAIN[2])


def test_a_chain_that_leads_in_a_circle_ends_with_an_error() -> None:
    circle = [stored(1, 1, 2), stored(2, 2, 1)]
    with pytest.raises(DamagedError):
        restore_chain(circle, circle[1])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Stored], dict[str, set[int]], ChainPolicy, float]:
    """A repository after any history: full backups and increments, some of them pruned, some local snapshots gone."""
    links: list[Stored] = []
    for number in range(1, draw(st.integers(0, 9)) + 1):
        base = draw(st.sampled_from([None, *range(1, number)]))
        links.append(stored(number, number, base))
    kept = [link for link in links if draw(st.booleans())]
    known = local(*[number for number in range(1, len(links) + 1) if draw(st.booleans())])
    # Of a set, one volume's snapshot may be gone and the other's not.
    known["data"] -= set(draw(st.lists(st.integers(1, 9), max_size=2)))
    policy = ChainPolicy(draw(st.none() | st.floats(0, 20 * 3600)), draw(st.none() | st.integers(1, 5)))
    return kept, known, policy, draw(st.floats(-10, 40))


@given(worlds())
def test_whatever_happened_a_base_can_be_sent_from_and_restored(
    world: tuple[list[Stored], dict[str, set[int]], ChainPolicy, float],
) -> None:
    kept, known, policy, hours = world
    plan = choose(kept, known, hours=hours, policy=policy)
    assert plan.reasons
    if plan.base is None:
        assert plan.why in {ReasonKind.FIRST, ReasonKind.CHAIN_AGE, ReasonKind.CHAIN_LENGTH, ReasonKind.NO_BASE}
        return
    assert plan.why is ReasonKind.INCREMENT
    assert plan.base in kept
    assert all(volume.guid in known[volume.role] for volume in plan.base.volumes)
    chain = restore_chain(kept, plan.base)
    assert all(volume.from_guid is None for volume in chain[0].volumes)
    for before, after in itertools.pairwise(chain):
        assert {v.role: v.guid for v in before.volumes} == {v.role: v.from_guid for v in after.volumes}
    assert policy.longest is None or len(chain) < policy.longest


@given(worlds())
def test_a_full_one_is_made_only_where_no_increment_may_be(
    world: tuple[list[Stored], dict[str, set[int]], ChainPolicy, float],
) -> None:
    kept, known, _, hours = world
    plan = choose(kept, known, hours=hours)
    usable = []
    for link in kept:
        try:
            restore_chain(kept, link)
        except DamagedError:
            continue
        if all(volume.guid in known[volume.role] for volume in link.volumes):
            usable.append(link)
    assert plan.base == (usable[-1] if usable else None)


@given(worlds(), st.integers(0, 10**6))
def test_what_somebody_else_stores_beside_it_changes_nothing(
    world: tuple[list[Stored], dict[str, set[int]], ChainPolicy, float], guid: int
) -> None:
    kept, known, policy, hours = world
    foreign = [stored(100, 5000 + guid, None)]
    if not kept:
        return
    assert (
        choose([*kept, *foreign], known, hours=hours, policy=policy).base
        == choose(kept, known, hours=hours, policy=policy).base
    )


def test_after_damage_the_newest_backup_that_does_not_need_the_damaged_one_is_named() -> None:
    full, middle, last, other = stored(1, 1, None), stored(2, 2, 1), stored(3, 3, 2), stored(4, 9, None)
    assert newest_without([full, middle, last], middle.backup_id) == full
    assert newest_without([full, middle, last], last.backup_id) == middle
    assert newest_without([full, middle, other, last], full.backup_id) == other
    assert newest_without([full, middle, last], full.backup_id) is None
    assert newest_without([middle, last], "none") is None


def test_a_chain_that_is_known_to_be_damaged_is_no_base_and_the_next_backup_is_full() -> None:
    for damaged in (A, B, C):
        plan = choose(CHAIN, local(1, 2, 3), damaged={damaged: f"backup {damaged} is damaged"})
        assert (plan.base, plan.why) == (None, ReasonKind.DAMAGED)
        assert str(plan.reasons[-1]) == f"full: backup {damaged} is damaged"


def test_damage_of_another_chain_is_no_reason_for_a_full_backup() -> None:
    chain = [*CHAIN, stored(4, 4, None)]
    plan = choose(chain, local(1, 2, 3, 4), damaged={A: "backup A is damaged"})
    assert (plan.base, plan.why) == (chain[3], ReasonKind.INCREMENT)
