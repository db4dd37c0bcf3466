"""GTID sets obey the laws of sets, and read and print as the servers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.gtid import GtidPosition, GtidSet, contains

SOURCES = st.sampled_from(["3e11fa47-71ca-11e1-9e33-c80aa9429562", "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag", "00000000-0000-0000-0000-000000000001"])
INTERVALS = st.tuples(st.integers(1, 60), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1]))
SETS = st.lists(st.tuples(SOURCES, INTERVALS), max_size=12).map(GtidSet.of)


def numbers(gtids: GtidSet) -> set[tuple[str, int]]:
    return {(source, n) for source, intervals in gtids.intervals.items() for first, last in intervals for n in range(first, last + 1)}


@given(SETS, SETS)
def test_union_and_difference_are_those_of_sets(a: GtidSet, b: GtidSet) -> None:
    assert numbers(a.union(b)) == numbers(a) | numbers(b)
    assert numbers(a.minus(b)) == numbers(a) - numbers(b)


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


def test_a_servers_text_with_tags_and_line_breaks_is_read() -> None:
    text = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5:7,\n3e11fa47-71ca-11e1-9e33-c80aa9429562:tag_a:3-4:tag_b:9"
    assert str(GtidSet.parse(text)) == (
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7,3e11fa47-71ca-11e1-9e33-c80aa9429562:tag_a:3-4,3e11fa47-71ca-11e1-9e33-c80aa9429562:tag_b:9"
    )


@pytest.mark.parametrize(
    "text", ["nonsense", "3e11fa47-71ca-11e1-9e33-c80aa9429562", "3e11fa47-71ca-11e1-9e33-c80aa9429562:0", "3e11fa47-71ca-11e1-9e33-c80aa9429562:5-3"]
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
    assert str(here.advance(0, 4, 271)) == "0-4-271,5-2-9"


def test_families_do_not_contain_each_other() -> None:
    assert not contains(GtidSet(), GtidPosition())
