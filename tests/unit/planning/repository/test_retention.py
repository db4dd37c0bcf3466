"""Which backups stay: laws that hold for any history and any rules, and cases to read in golden/."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from zsnapdb.config.repository import KeepSettings
from zsnapdb.planning.creation_order import contradicted, in_order
from zsnapdb.planning.repository.retention import Retention, RetentionFacts, Unrestorable, decide

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
law = settings(max_examples=60, deadline=None)
COUNTS = ("last", "hourly", "daily", "weekly", "monthly", "yearly")


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
    pool_guid: int = 1
    createtxg: int = 1
    sequence: int | None = None


def named(at: datetime, number: int = 0) -> str:
    return f"{at:%Y%m%dT%H%M%SZ}-{number:04x}"


def history(times: Sequence[datetime], bases: Sequence[int | None]) -> list[Stored]:
    """Backups at those times, each an increment of the one at the index given, or full."""
    return [
        Stored(
            named(at, n),
            (
                Volume("data", n + 1, base + 1 if base is not None else None),
                Volume("parent", n + 1, base + 1 if base is not None else None),
            ),
        )
        for n, (at, base) in enumerate(zip(times, bases, strict=True))
    ]


def chains(times: Sequence[datetime], full_every: int) -> list[Stored]:
    return history(times, [None if n % full_every == 0 else n - 1 for n in range(len(times))])


@st.composite
def histories(draw: st.DrawFn) -> list[Stored]:
    gaps = draw(st.lists(st.integers(60, 40 * 86400), min_size=1, max_size=25))
    times: list[datetime] = []
    at = NOW
    for gap in gaps:
        at -= timedelta(seconds=gap)
        times.insert(0, at)
    bases = [draw(st.one_of(st.none(), st.integers(0, n - 1))) if n else None for n in range(len(times))]
    return history(times, bases)


rules = st.builds(
    KeepSettings,
    last=st.integers(1, 5),
    hourly=st.integers(0, 5),
    daily=st.integers(0, 5),
    weekly=st.integers(0, 5),
    monthly=st.integers(0, 5),
    yearly=st.integers(0, 3),
    within=st.integers(0, 30).map(lambda days: days * 86400.0),
    minimum=st.integers(1, 6),
)


@st.composite
def known_things(draw: st.DrawFn, stored: Sequence[Stored]) -> RetentionFacts:
    some = st.dictionaries(st.sampled_from([s.backup_id for s in stored]), st.just("why"), max_size=3)
    odd = st.dictionaries(
        st.datetimes(datetime(2024, 1, 1), datetime(2026, 11, 1)).map(named), st.just("why"), max_size=1
    )
    return RetentionFacts(
        unreadable=draw(odd), faulty=draw(some), pinned=draw(some), in_use=draw(some), locked=draw(some)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Stored], KeepSettings, RetentionFacts]:
    stored = draw(histories())
    return stored, draw(rules), draw(known_things(stored))


def ancestors(stored: Sequence[Stored], name: str) -> set[str]:
    by_guid = {s.volumes[0].guid: s for s in stored}
    needed, at = set(), next(s for s in stored if s.backup_id == name)
    while at.volumes[0].from_guid is not None and at.volumes[0].from_guid in by_guid:
        at = by_guid[at.volumes[0].from_guid]
        needed.add(at.backup_id)
    return needed


def kept(retention: Retention) -> set[str]:
    return set(retention.kept)


anything = pytest.mark.parametrize("unrestorable", list(Unrestorable))


@anything
@law
@given(case=cases())
def test_what_stays_has_all_it_is_an_increment_of(
    unrestorable: Unrestorable, case: tuple[list[Stored], KeepSettings, RetentionFacts]
) -> None:
    stored, keep, known = case
    left = kept(decide(stored, keep, NOW, known, unrestorable))
    for name in left & {s.backup_id for s in stored}:
        assert ancestors(stored, name) <= left


@anything
@law
@given(case=cases())
def test_the_newest_backup_that_can_be_restored_always_stays(
    unrestorable: Unrestorable, case: tuple[list[Stored], KeepSettings, RetentionFacts]
) -> None:
    stored, keep, known = case
    left = kept(decide(stored, keep, NOW, known, unrestorable))
    good = [s.backup_id for s in stored if not ({s.backup_id} | ancestors(stored, s.backup_id)) & set(known.faulty)]
    assert left
    assert set(good[-keep.minimum :]) <= left
    if not good:
        assert left >= {s.backup_id for s in stored}


@law
@given(case=cases())
def test_pruning_twice_removes_nothing_more(case: tuple[list[Stored], KeepSettings, RetentionFacts]) -> None:
    stored, keep, known = case
    left = kept(decide(stored, keep, NOW, known))
    again = [s for s in stored if s.backup_id in left]
    assert kept(decide(again, keep, NOW, known)) == left


@law
@given(case=cases(), rule=st.sampled_from([*COUNTS, "minimum"]), more=st.integers(1, 5))
def test_a_larger_rule_never_removes_more(
    case: tuple[list[Stored], KeepSettings, RetentionFacts], rule: str, more: int
) -> None:
    stored, keep, known = case
    larger = keep.model_copy(update={rule: getattr(keep, rule) + more})
    assert kept(decide(stored, keep, NOW, known)) <= kept(decide(stored, larger, NOW, known))


@law
@given(case=cases())
def test_knowing_of_a_reason_to_keep_never_removes_more(
    case: tuple[list[Stored], KeepSettings, RetentionFacts],
) -> None:
    stored, keep, known = case
    fewer = RetentionFacts(faulty=known.faulty)
    assert kept(decide(stored, keep, NOW, fewer)) <= kept(decide(stored, keep, NOW, known))


@law
@given(case=cases(), order=st.randoms())
def test_the_order_in_which_a_store_lists_backups_means_nothing(
    case: tuple[list[Stored], KeepSettings, RetentionFacts], order: random.Random
) -> None:
    stored, keep, known = case
    shuffled = list(stored)
    order.shuffle(shuffled)
    assert decide(in_order(shuffled), keep, NOW, known) == decide(in_order(stored), keep, NOW, known)


@law
@given(case=cases())
def test_increments_are_removed_before_what_they_are_increments_of(
    case: tuple[list[Stored], KeepSettings, RetentionFacts],
) -> None:
    stored, keep, known = case
    retention = decide(stored, keep, NOW, known, Unrestorable.REMOVE)
    gone: set[str] = set()
    for name in retention.removal_order:
        assert not ancestors(stored, name) & gone
        gone.add(name)
    assert gone == {s.backup_id for s in stored} - kept(retention)


@law
@given(case=cases())
def test_every_backup_is_decided_once_and_with_reasons(case: tuple[list[Stored], KeepSettings, RetentionFacts]) -> None:
    stored, keep, known = case
    retention = decide(stored, keep, NOW, known)
    assert [d.backup_id for d in retention.decisions] == sorted([*(s.backup_id for s in stored), *known.unreadable])
    assert all(d.reasons for d in retention.decisions)


@law
@given(case=cases())
def test_pinned_used_locked_and_unreadable_backups_stay(
    case: tuple[list[Stored], KeepSettings, RetentionFacts],
) -> None:
    stored, keep, known = case
    assert {*known.pinned, *known.in_use, *known.locked, *known.unreadable} <= kept(
        decide(stored, keep, NOW, known, Unrestorable.REMOVE)
    )


def test_a_base_with_a_later_id_than_its_increment_stays_with_it() -> None:
    """The host's clock was set back between the two."""
    stored = history([NOW - timedelta(hours=1), NOW - timedelta(hours=3), NOW - timedelta(minutes=1)], [None, 0, None])
    pinned = RetentionFacts(pinned={stored[1].backup_id: "audit"})
    assert kept(decide(stored, KeepSettings(last=1), NOW, pinned)) == {s.backup_id for s in stored}


def test_what_may_be_the_base_of_an_unreadable_backup_stays_even_if_a_clock_stepped_back() -> None:
    stored = history(
        [NOW - timedelta(days=9), NOW - timedelta(days=7, hours=-1), NOW - timedelta(days=3), NOW], [None] * 4
    )
    unreadable = RetentionFacts(unreadable={named(NOW - timedelta(days=7)): "cut"})
    retention = decide(stored, KeepSettings(last=1), NOW, unreadable)
    assert [d.keep for d in retention.decisions if d.backup_id in {s.backup_id for s in stored}] == [
        True,
        True,
        False,
        True,
    ]


def test_an_id_with_an_impossible_time_protects_everything() -> None:
    stored = history([NOW - timedelta(days=n) for n in (9, 5, 1)], [None] * 3)
    assert not decide(
        stored, KeepSettings(last=1), NOW, RetentionFacts(unreadable={"20269999T999999Z-0000": "odd"})
    ).removal_order


def test_a_backup_from_the_future_neither_goes_nor_counts() -> None:
    stored = history([NOW - timedelta(days=2), NOW - timedelta(days=1), NOW + timedelta(days=400)], [None] * 3)
    retention = decide(stored, KeepSettings(last=1), NOW)
    assert [d.keep for d in retention.decisions] == [False, True, True]


def test_a_chain_that_leads_in_a_circle_is_protected() -> None:
    stored = history([NOW - timedelta(days=3), NOW - timedelta(days=2), NOW], [1, 0, None])
    assert not decide(stored, KeepSettings(last=1), NOW).removal_order


def test_a_chain_of_ten_thousand_increments_is_decided_at_once() -> None:
    stored = chains([NOW - timedelta(minutes=10 * n) for n in range(10_000, 0, -1)], 10_001)
    assert not decide(stored, KeepSettings(last=1), NOW).removal_order


def test_rules_that_keep_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="no rule keeps anything"):
        KeepSettings(minimum=5)


def test_a_minimum_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="minimum"):
        KeepSettings(last=1, minimum=0)


def render(stored: Sequence[Stored], keep: KeepSettings, known: RetentionFacts, retention: Retention) -> str:
    by_guid = {s.volumes[0].guid: s.backup_id for s in stored}
    bases = {
        s.backup_id: by_guid.get(s.volumes[0].from_guid or 0, "(missing)") if s.volumes[0].from_guid else "-"
        for s in stored
    }
    lines = [f"now      {NOW:%Y-%m-%d %H:%M} UTC"]
    lines.append(
        "keep     " + ", ".join(f"{name} = {value:g}" for name, value in keep.model_dump(exclude_defaults=True).items())
    )
    for word in ("pinned", "in_use", "locked", "faulty", "unreadable"):
        lines += [f"{word:<8} {name}: {why}" for name, why in getattr(known, word).items()]
    lines += ["", f"{'':<8} {'BACKUP':<21} {'INCREMENT OF':<21} WHY"]
    for d in retention.decisions:
        lines.append(
            f"{'keep' if d.keep else 'remove':<8} {d.backup_id:<21} {bases.get(d.backup_id, '?'):<21}"
            f" {'; '.join(d.reasons)}"
        )
    lines += ["", "removed in this order: " + (", ".join(retention.removal_order) or "nothing")]
    return "\n".join(lines) + "\n"


def spaced(count: int, **gap: float) -> list[datetime]:
    return [NOW - timedelta(**gap) * n for n in range(count - 1, -1, -1)]


GRANDFATHER = chains(spaced(60, days=5), 1)
NIGHTLY = chains(spaced(24, days=1), 7)
WEEK = chains(spaced(12, hours=8), 4)
CASES = {
    "grandfather-father-son": (GRANDFATHER, KeepSettings(last=2, weekly=4, monthly=6, yearly=2), RetentionFacts()),
    "nightly-chains-of-a-week": (NIGHTLY, KeepSettings(daily=5, weekly=2), RetentionFacts()),
    "hours-and-days": (WEEK, KeepSettings(hourly=3, daily=3, within=12 * 3600.0), RetentionFacts()),
    "minimum-after-a-long-silence": (
        chains([NOW - timedelta(days=200 + n) for n in range(6, 0, -1)], 2),
        KeepSettings(within=7 * 86400.0, minimum=2),
        RetentionFacts(),
    ),
    "pins-locks-and-runs-under-way": (
        NIGHTLY,
        KeepSettings(last=2),
        RetentionFacts(
            pinned={NIGHTLY[3].backup_id: "before the migration to 8.4"},
            in_use={NIGHTLY[8].backup_id: "base of the next increment"},
            locked={NIGHTLY[14].backup_id: "until 2026-12-01 00:00 UTC"},
        ),
    ),
    "a-gap-in-a-chain": ([s for s in NIGHTLY if s is not NIGHTLY[16]], KeepSettings(last=3), RetentionFacts()),
    "damage-found-by-verify": (
        NIGHTLY,
        KeepSettings(last=1),
        RetentionFacts(faulty={NIGHTLY[22].backup_id: "verify found 1 chunk missing"}),
    ),
    "an-unreadable-manifest": (
        [s for s in NIGHTLY if s is not NIGHTLY[10]],
        KeepSettings(last=3),
        RetentionFacts(unreadable={NIGHTLY[10].backup_id: "Invalid JSON"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_decisions_are_those_on_file(name: str) -> None:
    stored, keep, known = CASES[name]
    text = render(stored, keep, known, decide(stored, keep, NOW, known))
    file = GOLDEN / f"retention-{name}.txt"
    if os.environ.get("ZSNAPDB_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_backup_from_the_future_counts_as_made_with_the_next_one_once_the_clock_is_sure() -> None:
    hours = [NOW - timedelta(hours=5), NOW + timedelta(days=900), NOW - timedelta(hours=3), NOW - timedelta(hours=1)]
    stored, rules = history(hours, [None] * 4), KeepSettings(within=2 * 3600.0)
    ahead, third, last = (one.backup_id for one in stored[1:])
    unsure = decide(stored, rules, NOW)
    sure = decide(stored, rules, NOW, RetentionFacts(is_sure=True))
    assert (kept(unsure), kept(sure)) == ({ahead, last}, {last})
    newest = decide(stored[:2], rules, NOW, RetentionFacts(is_sure=True))
    assert ahead in kept(newest), "nothing was made after it, so its time is not known"
    by_number = decide(stored, KeepSettings(last=3), NOW, RetentionFacts(is_sure=True))
    assert kept(by_number) == {ahead, third, last}


@given(st.lists(st.integers(-900, 0), min_size=1, max_size=8), st.integers(0, 8), st.booleans())
def test_backup_from_the_future_lets_no_earlier_made_one_go(hours: list[int], at: int, is_sure: bool) -> None:
    times = [NOW + timedelta(hours=hour) for hour in sorted(hours)]
    without = history(times, [None] * len(times))
    ahead = replace(history([NOW + timedelta(days=900)], [None])[0], backup_id=named(NOW + timedelta(days=900), 0xFFFF))
    ahead = replace(ahead, volumes=(Volume("data", 999, None),))
    rules, facts = KeepSettings(within=36 * 3600.0), RetentionFacts(is_sure=is_sure)
    stayed = kept(decide(without, rules, NOW, facts))
    assert stayed <= kept(decide([*without[:at], ahead, *without[at:]], rules, NOW, facts))


def test_period_of_a_wrong_time_is_unknown_and_takes_no_place() -> None:
    """The second and third one have ids of the future: each may be the newest of an hour.

    When their time has come, nothing shows whether these clocks were ahead or those of the next two behind.
    """
    hours = [-30.0, 100.0, 200.0, -3.0, -2.9]
    stored = history([NOW + timedelta(hours=hour) for hour in hours], [None] * 5)
    first, second, third, fourth, last = (one.backup_id for one in stored)
    later, all_of_them = NOW + timedelta(hours=300), {first, second, third, fourth, last}
    for now, rules, stay in (
        (NOW, KeepSettings(hourly=2), {first, second, third, last}),
        (NOW, KeepSettings(hourly=1), {last}),
        (NOW, KeepSettings(yearly=2), {last}),
        (later, KeepSettings(hourly=2), all_of_them),
        (later, KeepSettings(hourly=1), {first, last}),
        (later, KeepSettings(yearly=2), {first, last}),
    ):
        decided = decide(stored, rules, now, RetentionFacts(is_sure=True))
        assert kept(decided) == stay, (now, rules)
        assert all(one.reasons for one in decided.decisions)


def test_set_of_a_clock_that_was_behind_is_no_other_hour() -> None:
    """The third one was created after 30 hours, in the hour of the fourth one, by a clock that was behind."""
    hours = [-40.0, -34.0, -36.0, -4.0, -1.0]
    stored = history([NOW + timedelta(hours=hour) for hour in hours], [None] * 5)
    assert stored[1].backup_id in kept(decide(stored, KeepSettings(hourly=3), NOW))
    assert stored[2].backup_id in kept(decide(stored, KeepSettings(within=3600 * 5), NOW)), "its age is not known"


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.booleans()), min_size=1, max_size=12),
    st.builds(
        KeepSettings,
        last=st.integers(1, 3),
        hourly=st.integers(0, 4),
        daily=st.integers(0, 3),
        yearly=st.integers(0, 1),
    ),
    st.sampled_from((0.0, 36 * 3600.0)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
)
@law
def test_clock_that_was_ahead_removes_nothing_early(
    made: list[tuple[int, bool]], counts: KeepSettings, within: float, is_sure: bool, is_past: bool, seed: int
) -> None:
    """A backup that stays under a right clock also stays if ids of others, or its own, are of the future."""
    rules, chance = counts.model_copy(update={"within": within}), random.Random(seed)
    ahead = NOW + timedelta(days=900)
    now = NOW + timedelta(days=1000) if is_past else NOW
    times, at = list[datetime](), NOW
    for minutes, _ in reversed(made):
        at -= timedelta(minutes=minutes)
        times.insert(0, at)
    right = history([*times, NOW], [None] * (len(times) + 1))
    wrong = [
        replace(one, backup_id=named(ahead + timedelta(minutes=chance.randint(0, 90_000)), at)) if is_wrong else one
        for at, (one, is_wrong) in enumerate(zip(right, [*(wrong for _, wrong in made), False], strict=True))
    ]
    names = {one.backup_id: other.backup_id for one, other in zip(wrong, right, strict=True)}
    stayed = {names[name] for name in kept(decide(wrong, rules, now, RetentionFacts(is_sure=is_sure)))}
    assert kept(decide(right, rules, now)) <= stayed


@given(
    st.lists(st.tuples(st.integers(1, 600), st.sampled_from((0, 0, -2000, 2000))), min_size=1, max_size=12),
    st.builds(KeepSettings, last=st.integers(1, 3), hourly=st.integers(0, 4), daily=st.integers(0, 3)),
    st.sampled_from((0.0, 36 * 3600.0)),
    st.integers(0, 5),
)
@law
def test_contradicted_clock_removes_nothing_early(
    made: list[tuple[int, int]], counts: KeepSettings, within: float, seed: int
) -> None:
    """A backup that stays under a right clock stays if each wrong id, early or late, contradicts another one."""
    rules, chance = counts.model_copy(update={"within": within}), random.Random(seed)
    times, at = list[datetime](), NOW
    for minutes, _ in reversed(made):
        at -= timedelta(minutes=minutes)
        times.insert(0, at)
    said = [at + timedelta(minutes=round(wrong * chance.random())) for at, (_, wrong) in zip(times, made, strict=True)]
    doubtful = contradicted(said)
    told = [one if wrong else right for one, right, wrong in zip(said, times, doubtful, strict=True)]
    right = history(times, [None] * len(times))
    wrong_ids = [replace(one, backup_id=named(at, n)) for n, (one, at) in enumerate(zip(right, told, strict=True))]
    past = [(at, true) for at, true in zip(told, times, strict=True) if at <= NOW]
    is_known = contradicted([at for at, _ in past])
    assume(all(at == true or wrong for (at, true), wrong in zip(past, is_known, strict=True)))
    names = {one.backup_id: other.backup_id for one, other in zip(wrong_ids, right, strict=True)}
    stayed = {names[name] for name in kept(decide(wrong_ids, rules, NOW, RetentionFacts(is_sure=True)))}
    assert kept(decide(right, rules, NOW)) <= stayed


def test_backup_of_a_doubtful_clock_takes_no_place() -> None:
    """The second one was created after the host was off, by a clock that was behind: in the hour of the third one."""
    hours = [-30.2, -30.1, -2.5, -1.0]
    stored = history([NOW + timedelta(hours=hour) for hour in hours], [None] * 4)
    first, second, *_ = (one.backup_id for one in stored)
    rules = KeepSettings(hourly=3)
    assert first not in kept(decide(stored, rules, NOW))
    assert {first, second} <= kept(decide(stored, rules, NOW, RetentionFacts(unsure={second})))


def test_present_time_in_doubt_limits_no_period() -> None:
    """After a reboot the present time is only a lower bound: both backups of the day may be of different days."""
    stored = history([NOW - timedelta(hours=hour) for hour in (3.0, 2.0, 1.0)], [None] * 3)
    first, second, third = (one.backup_id for one in stored)
    rules, unsure = KeepSettings(daily=2), {second, third}
    assert {first, second, third} == kept(decide(stored, rules, NOW, RetentionFacts(unsure=unsure)))
    assert second not in kept(decide(stored, rules, NOW, RetentionFacts(unsure=unsure, is_sure=True)))
