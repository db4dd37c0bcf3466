"""Two states of a table are compared by an ordered merge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.errors import ConsistencyError, PreflightError
from zsnapdb.planning.clone.diff import Change, Column, DifferenceKind, Shape, merge, order_expression, select, shape

ID = Column("id", "int", key_part=1)
VALUE = Column("value", "varchar", 20)
SHAPE = Shape((ID,), (ID, VALUE), (), ())
STATES = st.dictionaries(st.integers(-5, 30), st.sampled_from(["a", "b", None]))


def rows(state: dict[int, str | None]) -> list[tuple[object, ...]]:
    return [(key, key, value) for key, value in sorted(state.items())]


@given(STATES, STATES)
def test_the_merge_tells_exactly_what_two_dictionaries_differ_in(
    before: dict[int, str | None], after: dict[int, str | None]
) -> None:
    changes = list(merge(SHAPE, rows(before), rows(after)))
    assert {c.key[0]: c.after for c in changes if c.kind is DifferenceKind.ADDED} == {
        k: (k, after[k]) for k in after.keys() - before.keys()
    }
    assert {c.key[0]: c.before for c in changes if c.kind is DifferenceKind.REMOVED} == {
        k: (k, before[k]) for k in before.keys() - after.keys()
    }
    changed = {k for k in before.keys() & after.keys() if before[k] != after[k]}
    assert {c.key[0]: (c.before, c.after) for c in changes if c.kind is DifferenceKind.CHANGED} == {
        k: ((k, before[k]), (k, after[k])) for k in changed
    }
    assert [c.key for c in changes] == sorted(c.key for c in changes)


def test_no_more_than_a_row_of_each_side_is_taken_ahead() -> None:
    taken: list[str] = []

    def endless(name: str) -> Iterator[tuple[object, ...]]:
        for n in itertools.count():
            taken.append(name)
            yield (n, n, name)

    merged = merge(SHAPE, endless("old"), endless("new"))
    for n in range(100):
        assert next(merged) == Change(DifferenceKind.CHANGED, (n,), (n, "old"), (n, "new"))
    assert len(taken) <= 202


def test_rows_out_of_order_are_refused() -> None:
    with pytest.raises(ConsistencyError, match="sorts the primary key in an unexpected order"):
        list(merge(SHAPE, [(2, 2, "a"), (1, 1, "a")], []))


def test_columns_of_one_side_are_told_and_left_out() -> None:
    both = shape([ID, VALUE, Column("gone", "int")], [ID, Column("new", "int"), VALUE], "db.t")
    assert (both.common, both.only_before, both.only_after) == ((ID, VALUE), ("gone",), ("new",))


def test_a_table_without_or_with_another_primary_key_is_refused() -> None:
    with pytest.raises(PreflightError, match="no primary key"):
        shape([VALUE], [VALUE], "db.t")
    with pytest.raises(PreflightError, match="differs between"):
        shape([ID], [Column("id", "bigint", key_part=1)], "db.t")


def test_each_type_is_ordered_as_the_server_does() -> None:
    assert order_expression(ID) == "`id`"
    assert order_expression(Column("c", "varchar", 20)) == "WEIGHT_STRING(`c` AS CHAR(20))"
    assert order_expression(Column("c", "varchar", 20, pads=False)) == "WEIGHT_STRING(`c`)"
    assert order_expression(Column("e", "enum")) == "`e` + 0"


def test_the_query_walks_the_primary_keys_own_index_and_quotes() -> None:
    both = Shape((Column("a`b", "int", key_part=1),), (Column("a`b", "int", key_part=1), VALUE), (), ())
    assert (
        select(both, "d`b", "t")
        == "SELECT `a``b`, `a``b`, `value` FROM `d``b`.`t` FORCE INDEX (PRIMARY) ORDER BY `a``b`"
    )
