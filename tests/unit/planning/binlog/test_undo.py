"""Changes are undone only where the binlog and the table say all, and only if no row was changed since."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from zsnapdb.planning.binlog.changes import ChangeKind
from zsnapdb.planning.binlog.row_values import NULL, ValueColumn, condition, is_form_of, sql_value
from zsnapdb.planning.binlog.undo import (
    LoggedColumn,
    LoggedRow,
    RowChange,
    TableShape,
    expectations,
    row_change,
    row_objection,
    script,
    shape_objection,
    undoing,
)

ID = ValueColumn("id", "int", "int", key_part=1)
NAME = ValueColumn("na`me", "varchar", "varchar(50)", charset="utf8mb4")
SHAPE = TableShape("app", "t", (ID, NAME))
LOGGED = (LoggedColumn(3, 0, 4), LoggedColumn(15, 1, 0))


def image(number: int, text: bytes | None) -> dict[int, bytes | None]:
    return {0: struct.pack("<i", number), 1: text}


def change(before: dict[int, bytes | None] | None, after: dict[int, bytes | None] | None) -> RowChange:
    kind = ChangeKind.INSERT if before is None else ChangeKind.DELETE if after is None else ChangeKind.UPDATE
    return row_change(SHAPE, LoggedRow("app", "t", kind, LOGGED, before, after))


def test_an_insert_is_undone_only_if_the_row_is_still_the_same_byte_by_byte() -> None:
    assert undoing(change(None, image(1, b"Ab"))) == (
        "DELETE FROM `app`.`t` WHERE `id` = 1 AND `id` = 1 AND CAST(`na``me` AS BINARY) = x'4162'"
    )


def test_a_delete_is_undone_by_an_insert_of_the_row() -> None:
    assert undoing(change(image(-1, None), None)) == "INSERT INTO `app`.`t` (`id`, `na``me`) VALUES (-1, NULL)"


def test_an_update_is_undone_by_the_old_values_where_the_new_ones_are() -> None:
    assert undoing(change(image(1, b"it's"), image(2, None))) == (
        "UPDATE `app`.`t` SET `id` = 1, `na``me` = _utf8mb4 x'69742773' WHERE `id` = 2 AND `id` = 2 AND"
        " `na``me` IS NULL"
    )


def test_the_script_undoes_the_last_change_first_and_commits_only_if_each_changed_its_row() -> None:
    text = script([change(None, image(1, b"a")), change(image(1, b"a"), image(1, b"b"))], "comment")
    assert (
        text.index("UPDATE `app`") < text.index("DELETE FROM `app`") < text.index("'COMMIT'") < text.index("ROLLBACK")
    )
    assert "IF(@zsnapdb_undone = 2, 'COMMIT', 'DO 0')" in text
    assert not [line for line in text.splitlines() if line == "COMMIT;"]


def test_only_what_the_transaction_left_of_a_row_is_expected_of_the_server() -> None:
    changes = [
        change(None, image(1, b"a")),
        change(image(1, b"a"), image(2, b"a")),
        change(image(3, b"c"), None),
        change(None, image(3, b"d")),
    ]
    expected = {(e.change.key["id"].shown, e.is_absent) for e in expectations(changes)}
    assert expected == {("1", True), ("2", False), ("3", False)}


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (replace(SHAPE, columns=()), "does not exist"),
        (replace(SHAPE, engine="MyISAM"), "no plain InnoDB table"),
        (replace(SHAPE, is_base=False), "no plain InnoDB table"),
        (replace(SHAPE, columns=(NAME,)), "no primary key"),
        (replace(SHAPE, table="a\\`; DROP"), "a client may misread"),
        (replace(SHAPE, columns=(ID, replace(NAME, name="a\nb"))), "a client may misread"),
        (replace(SHAPE, triggers=1), "triggers"),
        (replace(SHAPE, cascades=1), "CASCADE"),
        (replace(SHAPE, columns=(ID, ValueColumn("j", "json", "json"))), "its type is json"),
    ],
)
def test_a_table_whose_changes_cannot_be_undone_is_refused_with_the_reason(shape: TableShape, reason: str) -> None:
    assert reason in (shape_objection(shape) or "")
    assert shape_objection(SHAPE) is None


@pytest.mark.parametrize(
    ("columns", "after", "reason"),
    [
        (LOGGED[:1], image(1, b""), "had 1 then"),
        ((LoggedColumn(8, 0, 8), LOGGED[1]), image(1, b""), "another type"),
        (LOGGED, {0: b"\1\0\0\0"}, "binlog_row_image"),
    ],
)
def test_rows_of_another_form_of_the_table_are_refused(
    columns: tuple[LoggedColumn, ...], after: dict[int, bytes | None], reason: str
) -> None:
    row = LoggedRow("app", "t", ChangeKind.INSERT, columns, None, after)
    assert reason in (row_objection(SHAPE, row) or "")
    assert row_objection(SHAPE, replace(row, columns=LOGGED, after=image(1, b""))) is None


def column(kind: str, full: str = "", **more: object) -> ValueColumn:
    return replace(ValueColumn("c", kind, full or kind), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "raw", "expected"),
    [
        (column("tinyint"), b"\xff", "-1"),
        (column("bigint", "bigint unsigned"), b"\xff" * 8, str(2**64 - 1)),
        (column("float"), struct.pack("<f", 0.1), "0.10000000149011612e0"),
        (column("double"), struct.pack("<d", -1e300), "-1e+300"),
        (column("decimal", precision=14, scale=4), bytes.fromhex("810dfb38d204d2"), "1234567890.1234"),
        (column("decimal", precision=14, scale=4), bytes.fromhex("7ef204c72dfb2d"), "-1234567890.1234"),
        (column("decimal", precision=5, scale=0), bytes.fromhex("800000"), "0"),
        (column("date"), (2026 << 9 | 11 << 5 | 20).to_bytes(3, "little"), "'2026-11-20'"),
        (column("date"), bytes(3), "'0000-00-00'"),
        (column("year"), b"\x7e", "'2026'"),
        (column("time"), (0x800000 + (10 << 12 | 11 << 6 | 12)).to_bytes(3, "big"), "'10:11:12'"),
        (
            column("time", fraction=3),
            ((0x800000 << 16) - ((10 << 12 | 11 << 6 | 12) << 16 | 1230)).to_bytes(5, "big"),
            "'-10:11:12.123'",
        ),
        (
            column("datetime", fraction=6),
            (0x8000000000 + ((2026 * 13 + 11 << 5 | 20) << 17 | 23 << 12 | 59 << 6 | 58)).to_bytes(5, "big")
            + (7).to_bytes(3, "big"),
            "'2026-11-20 23:59:58.000007'",
        ),
        (column("timestamp", fraction=2), (1).to_bytes(4, "big") + b"\x32", "'1970-01-01 00:00:01.50'"),
        (column("timestamp"), bytes(4), "'0000-00-00 00:00:00'"),
        (column("bit"), b"\x10\x01", "4097"),
        (column("enum"), b"\x02", "2"),
        (column("set"), b"\x05", "5"),
        (column("binary", octets=4), b"ab", "x'61620000'"),
        (column("varbinary"), b"", "x''"),
        (column("varchar", charset="latin1"), b"\xe9", "_latin1 x'e9'"),
        (column("varchar", charset="utf16"), b"\0a", "_utf16 x'0061'"),
        (column("varchar", charset="utf8mb4"), b"plain", "'plain'"),
        (column("varchar", charset="utf8mb4"), b"a\\", "_utf8mb4 x'615c'"),
    ],
)
def test_values_are_written_as_the_server_reads_them(of: ValueColumn, raw: bytes, expected: str) -> None:
    assert sql_value(of, raw).assigned == expected


def test_null_is_compared_as_null() -> None:
    assert condition(NAME, sql_value(NAME, None)) == "`na``me` IS NULL"
    assert sql_value(NAME, None) is NULL


def test_enums_and_sets_are_compared_by_number_and_unknown_types_have_no_form() -> None:
    assert condition(column("enum"), sql_value(column("enum"), b"\1")) == "`c` + 0 = 1"
    assert not is_form_of(column("json"), 245, 4, 0)
    assert is_form_of(column("bit"), 16, 0, 2)
