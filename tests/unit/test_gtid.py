"""GTID sets obey the laws of sets, and read and print as the servers do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.gtid import GtidPosition, GtidSet, contains

FIRST, SECOND = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000000-0000-0000-0000-000000000001"
SOURCES = st.sampled_from(
    [FIRST, f"{FIRST}:tag", f"{FIRST}:_a_tag_of_thirty_two_characters_", f"{FIRST}:abc", SECOND, f"{SECOND}:tag"]
)
INTERVALS = st.tuples(st.integers(1, 60), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1]))
SETS = st.lists(st.tuples(SOURCES, INTERVALS), max_size=12).map(GtidSet.of)


def numbers(gtids: GtidSet) -> set[tuple[str, int]]:
    return {
        (source, n)
        for source, intervals in gtids.intervals.items()
        for first, last in intervals
        for n in range(first, last + 1)
    }


@given(SETS, SETS)
def test_union_and_difference_are_those_of_sets(a: GtidSet, b: GtidSet) -> None:
    assert numbers(a.union(b)) == numbers(a) | numbers(b)
    assert numbers(a.minus(b)) == numbers(a) - numbers(b)


@given(SETS, SOURCES, st.integers(1, 3))
def test_transactions_that_come_behind_the_last_of_a_source_join_it(a: GtidSet, source: str, count: int) -> None:
    last = max((n for name, n in numbers(a) if name == source), default=0)
    joined = a
    for number in range(last + 1, last + count + 1):
        joined = joined.union(GtidSet.of([(source, (number, number))]))
    assert numbers(joined) == numbers(a) | {(source, number) for number in range(last + 1, last + count + 1)}
    assert joined == GtidSet.of((name, (n, n)) for name, n in numbers(joined))


@given(SETS, SETS)
def test_containment_is_that_of_sets(a: GtidSet, b: GtidSet) -> None:
    assert a.contains(b) == (numbers(b) <= numbers(a))


@given(SETS)
def test_what_is_printed_reads_back_the_same(a: GtidSet) -> None:
    assert GtidSet.parse(str(a)) == a
    assert a.count() == len(numbers(a))


@given(SETS)
def test_equal_sets_have_one_form(a: GtidSet) -> None:
    assert GtidSet.of((s, (n, n)) for s, n in sorted(numbers(a), reverse=True)) == a


@given(SETS, SETS, SETS)
def test_union_is_that_of_sets_in_any_order(a: GtidSet, b: GtidSet, c: GtidSet) -> None:
    assert a.union(b) == b.union(a)
    assert a.union(b.union(c)) == a.union(b).union(c)
    assert a.union(a) == a == a.union(GtidSet())


@given(SETS, SETS)
def test_a_difference_leaves_nothing_of_what_was_taken_and_all_of_the_rest(a: GtidSet, b: GtidSet) -> None:
    assert a.minus(b).union(b) == a.union(b)
    assert a.minus(b).minus(b) == a.minus(b)
    assert not b.contains(a.minus(b)) or a.minus(b) == GtidSet()
    assert a.minus(a) == GtidSet()


@given(SETS, SETS, SETS)
def test_containment_is_an_order(a: GtidSet, b: GtidSet, c: GtidSet) -> None:
    assert a.contains(a)
    assert a.union(b).contains(a)
    assert a.contains(a.minus(b))
    assert (a.contains(b) and b.contains(a)) == (a == b)
    assert not (a.contains(b) and b.contains(c)) or a.contains(c)


@given(SETS)
def test_every_set_is_normal(a: GtidSet) -> None:
    assert list(a.intervals) == sorted(a.intervals)
    for intervals in a.intervals.values():
        assert intervals
        assert all(first <= last for first, last in intervals)
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(intervals))


@given(SETS)
def test_a_set_reads_back_as_a_server_writes_it(a: GtidSet) -> None:
    """A server writes a UUID once, then its numbers without a tag, then tag by tag, in any case, with line breaks."""
    by_uuid: dict[str, str] = {}
    for source, text in ((source, str(GtidSet({source: intervals}))) for source, intervals in a.intervals.items()):
        uuid = source.partition(":")[0]
        by_uuid[uuid] = by_uuid.get(uuid, uuid) + text.removeprefix(uuid)
    assert GtidSet.parse(",\n".join(by_uuid.values())) == a
    assert GtidSet.parse(", ".join(by_uuid.values()).upper()) == a


def test_a_servers_text_with_tags_and_line_breaks_is_read() -> None:
    text = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5:7,\n3e11fa47-71ca-11e1-9e33-c80aa9429562:tag_a:3-4:tag_b:9"
    assert str(GtidSet.parse(text)).split(",") == [
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag_a:3-4",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag_b:9",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:0",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:5-3",
    ],
)
def test_malformed_sets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        GtidSet.parse(text)


def test_a_mariadb_position_contains_what_its_heads_cover() -> None:
    here = GtidPosition.parse("0-1-270,5-2-9")
    assert contains(here, GtidPosition.parse("0-3-270"))
    assert contains(here, GtidPosition.parse(""))
    assert not contains(here, GtidPosition.parse("0-1-271"))
    assert not contains(here, GtidPosition.parse("7-1-1"))


POSITIONS = st.dictionaries(st.integers(0, 4), st.tuples(st.integers(1, 3), st.integers(1, 30))).map(
    lambda heads: GtidPosition(dict(sorted(heads.items())))
)


def covered(position: GtidPosition) -> set[tuple[int, int]]:
    return {(domain, n) for domain, (_, sequence) in position.heads.items() for n in range(1, sequence + 1)}


@given(POSITIONS)
def test_a_mariadb_position_that_is_printed_reads_back_the_same(a: GtidPosition) -> None:
    assert GtidPosition.parse(str(a)) == a


@given(POSITIONS, POSITIONS)
def test_a_mariadb_position_contains_another_if_it_covers_all_its_transactions(
    a: GtidPosition, b: GtidPosition
) -> None:
    assert a.contains(b) == (covered(b) <= covered(a))


def test_in_a_mariadb_text_the_newest_of_a_domain_counts() -> None:
    """gtid_binlog_state names every server of a domain."""
    assert str(GtidPosition.parse("0-2-41,0-1-40, 5-1-3")) == "0-2-41,5-1-3"


@pytest.mark.parametrize("text", ["0-1", "a-1-2", "0-1-2-3", "0-1-2;1-1-1"])
def test_malformed_mariadb_positions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a GTID position"):
        GtidPosition.parse(text)


def test_families_do_not_contain_each_other() -> None:
    assert not contains(GtidSet(), GtidPosition())


@pytest.mark.parametrize("parse", [GtidSet.parse, GtidPosition.parse])
def test_the_error_about_a_malformed_text_stays_short_however_long_the_text_is(parse: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="not a") as caught:
        parse("x" * 200_000)
    assert len(str(caught.value)) < 200
