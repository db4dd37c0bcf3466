"""Two states of a table are compared by an ordered merge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import ConsistencyError, PreflightError
from zsnapdb.planning.clone.diff import Change, Column, DifferenceKind, Shape, merge, select, shape

ID = Column("id", "int", key_part=1)
VALUE = Column("value", "varchar", 20)
SHAPE = Shape((ID,), (ID, VALUE), (ID, VALUE), (), ())
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


def test_the_query_walks_the_primary_keys_own_index_and_quotes() -> None:
    key = Column("a`b", "int", key_part=1)
    both = Shape((key,), (key, VALUE), (key, VALUE), (), ())
    assert (
        select(both, both.common, "d`b", "t")
        == "SELECT `a``b`, `a``b`, `value` FROM `d``b`.`t` FORCE INDEX (PRIMARY) ORDER BY `a``b`"
    )


def test_what_a_printed_value_does_not_tell_is_a_change_and_is_shown_in_its_place() -> None:
    text = Column("text", "varchar", 20, charset="cp932")
    both = shape([ID, VALUE, text], [ID, VALUE, text], "db.t")
    assert select(both, both.common, "d", "t").startswith(
        "SELECT `id`, `id`, `value`, `text`, CAST(`text` AS BINARY) FROM"
    )
    same, old, new = (2, 2, "a", "b", b"b"), (3, 3, "a", "c", b"\x81\xca"), (3, 3, "a", "c", b"\xee\xf9")
    assert list(merge(both, [same, old], [same, new])) == [
        Change(DifferenceKind.CHANGED, (3,), (3, "a", b"\x81\xca"), (3, "a", b"\xee\xf9"))
    ]
    assert list(merge(both, [old], [])) == [Change(DifferenceKind.REMOVED, (3,), (3, "a", "c"), None)]


def test_another_character_set_is_no_change_of_a_text() -> None:
    old, new = Column("text", "varchar", 20, charset="cp932"), Column("text", "varchar", 20, charset="utf8mb4")
    assert shape([ID, old], [ID, new], "db.t").remainders == (None, None)


def test_the_sign_of_zero_and_each_number_of_single_precision_are_told_apart() -> None:
    single, double = Column("single", "float"), Column("double", "double")
    both = shape([ID, single, double], [ID, single, double], "db.t")
    sql = "SELECT `id`, `id`, `single` * 1e0, `double` * 1e0 FROM `d`.`t` FORCE INDEX (PRIMARY) ORDER BY `id`"
    assert select(both, both.common, "d", "t") == sql
    tenth = 0.10000000149011612
    changes = list(merge(both, [(1, 1, tenth, 0.0), (2, 2, tenth, 0.0)], [(1, 1, tenth, -0.0), (2, 2, tenth, 0.0)]))
    assert [(change.key, change.before, change.after) for change in changes] == [((1,), (1, 0.1, 0.0), (1, 0.1, -0.0))]


def test_a_single_that_became_a_double_of_the_same_look_is_shown_with_all_digits() -> None:
    both = shape([ID, Column("real", "float")], [ID, Column("real", "double")], "db.t")
    (change,) = merge(both, [(1, 1, 0.10000000149011612)], [(1, 1, 0.1)])
    assert (change.before, change.after) == ((1, 0.10000000149011612), (1, 0.1))
