"""Values have forms that lose nothing."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.diff import Column, order_expression, shortest_single, sort_expression


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_short_form_names_the_single_with_nine_digits_at_most(single: float) -> None:
    short = shortest_single(single)
    assert struct.pack("f", short) == struct.pack("f", single)
    assert float(f"{short:.9g}") == short


@pytest.mark.parametrize("text", ["0.1", "1234567", "16777215", "3.4028235e38", "1e-45", "-0.0"])
def test_the_short_form_is_what_a_person_writes(text: str) -> None:
    (single,) = struct.unpack("f", struct.pack("f", float(text)))
    assert repr(shortest_single(single)) in (repr(float(text)), "1.4013e-45")


def test_each_type_is_ordered_as_the_server_does() -> None:
    assert order_expression(Column("id", "int")) == "`id`"
    assert order_expression(Column("c", "varchar", 20)) == "WEIGHT_STRING(`c` AS CHAR(20))"
    assert order_expression(Column("c", "varchar", 20, pads=False)) == "WEIGHT_STRING(`c`)"
    assert order_expression(Column("e", "enum")) == "CAST(`e` AS UNSIGNED)"
    assert order_expression(Column("d", "date")) == "`d` + 0"
    assert order_expression(Column("f", "float")) == "`f` * 1e0"


def test_the_server_walks_the_index_except_of_a_uuid() -> None:
    assert sort_expression(Column("c", "varchar", 20)) == "`c`"
    assert sort_expression(Column("u", "uuid")) == order_expression(Column("u", "uuid")) == "CAST(`u` AS BINARY)"
