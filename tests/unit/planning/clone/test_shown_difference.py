"""What is shown of a difference has a limit, and says so if it is reached."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.diff import Change, DifferenceKind, ShownDifference

VALUES = st.one_of(st.text(max_size=20), st.binary(max_size=20), st.integers(0, 999), st.none())
TABLES = st.lists(st.lists(VALUES, max_size=6), max_size=4)


def change(value: object) -> Change:
    return Change(DifferenceKind.ADDED, (1,), None, (1, value))


@given(st.lists(st.text("ab\n", max_size=9), max_size=9).map("\n".join), TABLES, st.integers(0, 4), st.integers(0, 99))
def test_no_more_is_shown_than_fits_and_nothing_is_left_out_that_fits(
    text: str, tables: list[list[object]], rows: int, characters: int
) -> None:
    room = ShownDifference(rows, characters)
    lines = room.fitting_lines(text)
    found = [room.fitting_rows(map(change, table)) for table in tables]
    assert text.startswith(lines)
    assert lines == text or text[len(lines)] == "\n" or not lines, "no part of a line"
    assert room.is_cut == (lines != text)
    assert all(list(one) == [*map(change, table)][: len(one)] for one, table in zip(found, tables, strict=True))
    assert all(len(one) <= rows for one in found)
    least = len(lines) + sum(
        2 + len(value)
        for one in found
        for row in one
        for value in [row.after[1] if row.after is not None else None]
        if isinstance(value, str)
    )
    assert least <= characters
    unbounded = ShownDifference(9, 9999)
    assert unbounded.fitting_lines(text) == text
    assert all(list(unbounded.fitting_rows(map(change, table))) == [*map(change, table)] for table in tables)


def test_bytes_count_as_the_digits_by_which_they_are_shown() -> None:
    assert ShownDifference(9, 22).fitting_rows([change(b"x" * 10)]) == (change(b"x" * 10),)
    assert ShownDifference(9, 21).fitting_rows([change(b"x" * 10)]) == ()
