"""Changes are undone only where the binlog and the table say all, and only if no row was changed since."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from zsnapdb.planning.binlog.changes import ChangeKind
from zsnapdb.planning.binlog.row_values import (
    NULL,
    ForeignKey,
    LoggedColumn,
    TableShape,
    Trigger,
    UniqueKey,
    ValueColumn,
    condition,
    form_difference,
    logged_difference,
    server_value,
    shape_difference,
    sql_value,
)
from zsnapdb.planning.binlog.undo import (
    LoggedRow,
    RowChange,
    StateBefore,
    changing,
    count_difference,
    count_objection,
    expectations,
    needs_same_definition,
    opening,
    proven_changes,
    questions,
    referring,
    row_change,
    row_objection,
    script,
    shape_objection,
    undoing,
)

ID = ValueColumn("id", "int", "int", key_part=1)
NAME = ValueColumn("na`me", "varchar", "varchar(50)", charset="utf8mb4", octets=200, collation="x", collation_id=46)
SHAPE = TableShape("app", "t", (ID, NAME), made=100)
LOGGED = (LoggedColumn(3, 0, 4), LoggedColumn(15, 1, 0, 200))
NAMED = (replace(LOGGED[0], name="id", is_unsigned=False), replace(LOGGED[1], name="na`me", collation=46))
CASCADE = ForeignKey("app", "up", "child", ("p",), "app", "t", ("id",), "RESTRICT", "CASCADE")


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


def test_a_script_undoes_nothing_once_its_table_was_altered() -> None:
    lines = script([change(None, image(1, b"a"))], "comment").splitlines()
    guards = [line for line in lines if "information_schema" in line]
    assert lines.index(guards[-1]) < lines.index("START TRANSACTION;")
    assert [line.startswith("SET @zsnapdb_undone = @zsnapdb_undone - (SELECT COUNT(*) <> ") for line in guards] == [
        True
    ] * 3
    assert "table_schema = 'app' AND table_name = 't' AND UNIX_TIMESTAMP(create_time) = 100);" in guards[0]


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
        (replace(SHAPE, columns=(NAME,), foreign_keys=(CASCADE,)), "no primary key, and foreign key app.up"),
        (replace(SHAPE, table="a\\`; DROP"), "a client may misread"),
        (replace(SHAPE, columns=(ID, replace(NAME, name="a\nb"))), "a client may misread"),
        (replace(SHAPE, triggers=(Trigger("more", "AFTER INSERT 1", "SET @x = 1"),)), "triggers"),
        (replace(SHAPE, columns=(ID, ValueColumn("v", "vector", "vector(3)"))), "its type is vector"),
        (replace(SHAPE, columns=(replace(ID, type="json"), NAME)), "its type is json"),
    ],
)
def test_a_table_whose_changes_cannot_be_undone_is_refused_with_the_reason(shape: TableShape, reason: str) -> None:
    assert reason in (shape_objection(shape) or "")
    assert shape_objection(SHAPE) is None


def test_a_row_of_which_the_binlog_has_not_the_key_is_refused() -> None:
    row = LoggedRow("app", "t", ChangeKind.INSERT, LOGGED, None, {1: b""})
    assert "the primary key" in (row_objection(SHAPE, row) or "")
    assert row_objection(SHAPE, replace(row, after={0: b"\1\0\0\0"})) is None


def test_a_value_that_the_binlog_leaves_out_is_not_made_up() -> None:
    row = change(image(1, b"a"), {0: b"\1\0\0\0"})
    assert row.after is not None
    assert list(row.after) == ["id"]
    assert [one.question for one in expectations([row])] == ["SELECT 1 FROM `app`.`t` WHERE `id` = 1 AND `id` = 1"]


@pytest.mark.parametrize(
    ("logged", "reason"),
    [
        (NAMED[:1], "had 1 then"),
        ((replace(NAMED[0], code=8, fixed=8), NAMED[1]), "another type or size"),
        ((NAMED[0], replace(NAMED[1], size=201)), "another type or size"),
        ((replace(NAMED[0], is_unsigned=True), NAMED[1]), "was UNSIGNED"),
        ((NAMED[0], replace(NAMED[1], collation=45)), "another character set or collation"),
        ((NAMED[0], replace(NAMED[1], name="other")), "was named other"),
    ],
)
def test_a_column_that_was_another_one_in_the_transaction_is_named(
    logged: tuple[LoggedColumn, ...], reason: str
) -> None:
    assert reason in (logged_difference(SHAPE, logged, began=50) or "")
    assert logged_difference(SHAPE, NAMED, began=50) is None


@pytest.mark.parametrize(
    ("made", "began", "is_proved"), [(100, 101, True), (100, 100, False), (101, 100, False), (None, 100, False)]
)
def test_without_names_in_the_binlog_only_a_definition_that_is_older_than_the_transaction_counts(
    made: int | None, began: int, is_proved: bool
) -> None:
    assert (logged_difference(replace(SHAPE, made=made), LOGGED, began) is None) == is_proved


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (replace(SHAPE, columns=(NAME, ID)), "columns na`me, id now"),
        (replace(SHAPE, engine="MyISAM"), "engine MyISAM now"),
        (replace(SHAPE, columns=(replace(ID, full_type="int unsigned"), NAME)), "int unsigned"),
        (replace(SHAPE, columns=(ID, replace(NAME, is_nullable=False))), "NOT NULL"),
        (replace(SHAPE, keys=(UniqueKey("u", ("id",)),)), "has the unique key u now"),
        (replace(SHAPE, foreign_keys=(CASCADE,)), "has the foreign key app.up now"),
        (replace(SHAPE, triggers=(Trigger("more", "", ""),)), "has the trigger more now"),
    ],
)
def test_any_difference_between_the_definition_before_the_transaction_and_now_is_named(
    now: TableShape, reason: str
) -> None:
    assert reason in (shape_difference(SHAPE, now) or "")
    assert shape_difference(now, SHAPE) is not None
    assert shape_difference(SHAPE, replace(SHAPE, made=None)) is None
    assert "there was no table" in (shape_difference(replace(SHAPE, columns=()), SHAPE) or "")


ONE, TWO = (b"1", b"a"), (b"2", b"a")
"""Rows as a server answers them."""


def test_a_row_that_is_not_as_it_was_is_named_by_its_key() -> None:
    asked = questions([change(image(1, b"a"), image(2, b"a")), change(image(2, b"a"), None)])
    assert [question.sql for question in asked] == [
        f"SELECT CAST(`id` AS BINARY), CAST(`na``me` AS BINARY) FROM `app`.`t` WHERE `app`.`t`.`id` = {key}"
        for key in (1, 2)
    ]
    before = StateBefore((SHAPE,), asked, (ONE, ()))
    assert before.row_difference((ONE, ())) is None
    for rows, reason in (
        ((TWO, ()), "row (id=1) of app.t has other"),
        (((), ()), "is not there"),
        ((ONE, TWO), "was not there"),
    ):
        assert reason in (before.row_difference(rows) or "")


def test_a_row_that_the_transaction_left_alone_may_have_changed_since() -> None:
    asked = questions([change(image(1, b"a"), image(2, b"a")), change(image(2, b"a"), None)])
    changed, others = StateBefore((SHAPE,), asked, (ONE, TWO)).split((ONE, ()))
    assert (changed, others) == (StateBefore((SHAPE,), asked[1:], (TWO,)), asked[:1])
    assert changed.row_difference((TWO,)) is None


def test_what_is_undone_leads_from_the_rows_after_the_transaction_to_those_before_each_row_once() -> None:
    asked = questions([change(image(1, b"a"), image(2, b"a"))])
    moved = proven_changes((*asked, asked[0]), (ONE, (), ONE), ((), TWO, ()))
    assert [(one.kind, one.key["id"].shown) for one in moved] == [(ChangeKind.DELETE, "1"), (ChangeKind.INSERT, "2")]
    # The new key is freed before the old one is taken again.
    assert [text.split()[0] for text in changing(moved) if "zsnapdb" not in text] == ["DELETE", "INSERT"]
    assert proven_changes(asked, (ONE, TWO), (ONE, TWO)) == ()
    (update,) = proven_changes(asked, (ONE, ()), ((b"1", None), ()))
    assert undoing(update) == (
        "UPDATE `app`.`t` SET `id` = 1, `na``me` = 'a' WHERE `id` = 1 AND `id` = 1 AND `na``me` IS NULL"
    )


UNKEYED = replace(SHAPE, columns=(replace(ID, key_part=0), NAME))


def test_rows_of_a_table_without_a_key_are_counted() -> None:
    row = change(image(1, b"a"), None)
    gone = replace(row, shape=UNKEYED)
    asked = questions([gone, gone])
    assert [question.sql for question in asked] == [
        "SELECT COUNT(*) FROM `app`.`t` WHERE `id` = 1 AND CAST(`na``me` AS BINARY) = x'61'"
    ]
    assert count_difference([gone, gone], asked, ((b"3",),), ((b"1",),)) is None
    assert "changed by -1 in" in (count_difference([gone, gone], asked, ((b"3",),), ((b"2",),)) or "")
    assert [one.kind for one in proven_changes(asked, ((b"3",),), ((b"1",),))] == [ChangeKind.DELETE] * 2
    made = proven_changes(asked, ((b"0",),), ((b"1",),))
    assert [undoing(one) for one in made] == [
        "DELETE FROM `app`.`t` WHERE `id` = 1 AND CAST(`na``me` AS BINARY) = x'61' LIMIT 1"
    ]
    assert expectations([gone]) == []
    assert count_objection([gone] * 100) is None
    assert "101 rows" in (count_objection([gone] * 101) or "")


def test_without_a_key_the_binlog_must_have_every_value() -> None:
    row = LoggedRow("app", "t", ChangeKind.INSERT, LOGGED, None, {0: b"\1\0\0\0"})
    assert "not all values of app.t" in (row_objection(UNKEYED, row) or "")
    assert row_objection(UNKEYED, replace(row, after=image(1, b"a"))) is None
    document = replace(UNKEYED, columns=(UNKEYED.columns[0], ValueColumn("j", "json", "json")))
    assert "values of type json" in (row_objection(document, replace(row, after=image(1, b"a"))) or "")


def test_a_zero_with_a_sign_is_another_value_than_one_without() -> None:
    of = column("double")
    for raw, shown in ((-0.0, "-0"), (0.0, "0")):
        assert condition(of, sql_value(of, struct.pack("<d", raw))) == f"CAST(`c` + 0e0 AS CHAR) = '{shown}'"
        assert condition(of, server_value(of, shown.encode())) == f"CAST(`c` + 0e0 AS CHAR) = '{shown}'"


def test_a_value_that_only_a_replay_brought_counts_only_under_the_very_definition_of_now() -> None:
    whole, part = change(image(1, b"a"), None), change({0: b"\1\0\0\0"}, None)
    asked = questions([whole])
    for made, logged, is_proved in ((100, whole, True), (99, whole, True), (100, part, True), (99, part, False)):
        then = {SHAPE.name: replace(SHAPE, made=made)}
        assert (needs_same_definition([logged], asked, then) is None) == is_proved
    # Of a row that a foreign key changed, the binlog has nothing.
    assert needs_same_definition([], asked, {SHAPE.name: replace(SHAPE, made=99)}) is not None


def test_where_foreign_keys_change_rows_the_undo_counts_rows_that_refer_to_nothing() -> None:
    parent = replace(SHAPE, foreign_keys=(CASCADE,))
    gone = RowChange(parent, ChangeKind.INSERT, None, change(None, image(1, b"a")).after)
    text = " ".join(changing([gone]))
    assert "`app`.`child` c WHERE c.`p` = 1 AND c.`p` IS NOT NULL AND NOT EXISTS (SELECT 1 FROM `app`.`t` p" in text
    assert "SET SESSION foreign_key_checks = 0" in opening([gone])
    assert "SET SESSION foreign_key_checks = 0" not in opening([replace(gone, shape=SHAPE)])
    asked = questions([gone])[0]
    assert referring(asked, CASCADE, replace(SHAPE, table="child")) == (
        "SELECT CAST(c.`id` AS BINARY) FROM `app`.`t` JOIN `app`.`child` c ON c.`p` = `app`.`t`.`id`"
        " WHERE `app`.`t`.`id` = 1"
    )


@pytest.mark.parametrize(
    ("kind", "exact", "assigned"),
    [
        ("int", b"-5", "-5"),
        ("double", b"0.1", "0.1e0"),
        ("json", b"{}", "'{}'"),
        ("point", b"00FF", "x'00ff'"),
        ("datetime", b"2026-11-20 00:00:00", "'2026-11-20 00:00:00'"),
        ("blob", b"\xff", "x'ff'"),
    ],
)
def test_what_a_server_answers_is_written_as_it_reads_it(kind: str, exact: bytes, assigned: str) -> None:
    assert server_value(column(kind), exact).assigned == assigned
    assert server_value(column(kind), None) is NULL


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
    assert form_difference(column("json"), LoggedColumn(245, 4, 0)) is None
    assert form_difference(column("year"), LoggedColumn(13, 0, 1, is_unsigned=True)) is None
    assert form_difference(column("vector"), LoggedColumn(242, 4, 0)) is not None
    assert form_difference(column("bit", precision=11), LoggedColumn(16, 0, 2, 11)) is None


def test_the_values_of_an_enum_are_compared_in_their_character_set_and_order() -> None:
    now = column("enum", "enum('é','it''s','C')", charset="latin1", collation="y", collation_id=8)
    then = LoggedColumn(254, 0, 1, numbered=247, members=(b"\xe9", b"it's", b"C"))
    assert form_difference(now, then) is None
    for members in ((b"it's", b"\xe9", b"C"), (b"\xe9", b"it's"), (b"\xe9", b"it's", b"c")):
        assert "other values" in (form_difference(now, replace(then, members=members)) or "")
    assert "another type" in (form_difference(now, replace(then, numbered=248)) or "")
    # The values of a character set that is not read here are never equal.
    assert form_difference(replace(now, charset="big5"), then) is not None
