"""What was written into a clone is undone by rows only where the binlog has all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.planning.binlog.changes import ChangeKind, LoggedStatement, TableChanges, TransactionChanges
from zsnapdb.planning.binlog.row_values import NULL, ForeignKey, TableShape, ValueColumn
from zsnapdb.planning.binlog.undo import LoggedRow, RowChange
from zsnapdb.planning.clone.row_reset import (
    MOST_CHANGES,
    changes_objection,
    log_objection,
    table_objection,
    transaction_objection,
    unreadable_objection,
)

ROWS = TransactionChanges("1-1-1", 4, 100, 0, 0, is_exact=True, tables=(TableChanges("a", "t", inserted=1),))


@pytest.mark.parametrize(
    ("transaction", "said"),
    [
        (ROWS, None),
        (replace(ROWS, statements=(LoggedStatement(ChangeKind.DDL, "a", "DROP TABLE t"),)), "no change of rows"),
        (
            replace(ROWS, statements=(LoggedStatement(ChangeKind.OTHER, "a", "SET PASSWORD = 'x'"),)),
            "no change of rows",
        ),
        (replace(ROWS, other_statements=1), "no change of rows"),
        (replace(ROWS, is_prepared=True), "not all changes"),
        (replace(ROWS, has_incident=True), "not all changes"),
        (replace(ROWS, tables=(TableChanges("a", "t", is_counted=False),)), "not all changes"),
    ],
)
def test_a_transaction_with_anything_but_rows_replaces_the_data(
    transaction: TransactionChanges, said: str | None
) -> None:
    reason = transaction_objection(transaction)
    assert reason is None if said is None else said in str(reason)


ID = ValueColumn("id", "int", "int", key_part=1)
WORD = ValueColumn("word", "varchar", "varchar(9)", charset="utf8mb4", octets=36)
TABLE = TableShape("a", "t", (ID, WORD))
CASCADE = ForeignKey("a", "f", "other", ("t",), "a", "t", ("id",), "RESTRICT", "CASCADE")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE, None),
        (replace(TABLE, foreign_keys=(replace(CASCADE, on_delete="RESTRICT"),)), None),
        (replace(TABLE, foreign_keys=(CASCADE,)), "changes rows of other tables"),
        (replace(TABLE, columns=(replace(ID, key_part=0), WORD)), "has no primary key"),
        (replace(TABLE, engine="MyISAM"), "no plain InnoDB table"),
        (replace(TABLE, columns=()), "does not exist"),
    ],
)
def test_rows_of_a_table_whose_changes_reach_further_than_its_binlog_replace_the_data(
    table: TableShape, said: str | None
) -> None:
    reason = table_objection(table)
    assert reason is None if said is None else said in str(reason)


def test_a_row_of_which_the_binlog_lacks_a_value_and_too_many_rows_replace_the_data() -> None:
    whole = RowChange(TABLE, ChangeKind.INSERT, None, {"id": NULL, "word": NULL})
    assert changes_objection([whole] * MOST_CHANGES) is None
    assert "more than" in str(changes_objection([whole] * (MOST_CHANGES + 1)))
    assert "not all values" in str(changes_objection([replace(whole, after={"id": NULL})]))
    generated = replace(TABLE, columns=(ID, replace(WORD, is_generated=True)))
    assert changes_objection([RowChange(generated, ChangeKind.DELETE, {"id": NULL}, None)]) is None


FACTS = ValueColumn("facts", "json", "json")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, {0: b"1", 2: b"x"}, None),
        ({0: b"1", 1: b"a", 2: b"x"}, {0: b"1", 1: b"b", 2: b"x"}, None),
        ({0: b"1", 2: None}, {0: b"1", 2: None}, None),
        ({0: b"1", 2: b"x"}, {0: b"1", 2: b"y"}, "a value of a.t.facts was changed"),
        ({0: b"1", 2: b"x"}, {0: b"1"}, "was changed"),
        ({0: b"1"}, {0: b"1"}, "was changed"),
        ({0: b"1", 2: None}, {0: b"1", 2: b"x"}, "was changed"),
        ({0: b"1", 2: b"x"}, None, "was changed"),
    ],
)
def test_a_value_that_no_binlog_tells_may_stay_as_it_was_or_go_with_its_row(
    before: dict[int, bytes | None] | None, after: dict[int, bytes | None] | None, said: str | None
) -> None:
    table = replace(TABLE, columns=(ID, WORD, FACTS))
    kind = ChangeKind.UPDATE if before and after else ChangeKind.DELETE if before else ChangeKind.INSERT
    reason = unreadable_objection(table, LoggedRow("a", "t", kind, (), before, after))
    assert reason is None if said is None else said in str(reason)
    change = RowChange(table, kind, None, {"id": NULL, "word": NULL})
    assert changes_objection([change]) is None, "of the others it has all"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"File": "binlog.000001", "Position": "4"}, None),
        ({}, "writes no binlog"),
        ({"File": "binlog.000001", "Binlog_Ignore_DB": "scratch"}, "leaves out schemas (scratch)"),
        ({"File": "binlog.000001", "Binlog_Do_DB": "app"}, "leaves out schemas (app)"),
    ],
)
def test_a_binlog_that_leaves_something_out_replaces_the_data(status: dict[str, str], said: str | None) -> None:
    reason = log_objection(status)
    assert reason is None if said is None else said in str(reason)
