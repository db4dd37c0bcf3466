"""Creates the SQL that undoes a transaction, and finds reasons against an undo. Pure.

The statements change a row only if all its values are still those that the transaction left.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.patterns import printable
from zsnapdb.planning.binlog.changes import ChangeKind
from zsnapdb.planning.binlog.row_values import (
    NULL,
    ForeignKey,
    LoggedColumn,
    SqlValue,
    TableShape,
    ValueColumn,
    condition,
    exact_values,
    is_readable,
    is_readable_on_server,
    server_value,
    shape_difference,
    sql_value,
)
from zsnapdb.planning.sql_quoting import quoted

MOST_ROWS = 100_000
"""The maximum number of rows in a transaction that can be undone."""
MOST_ROWS_WITHOUT_KEY = 100
"""The maximum number of rows in tables without a primary key. Each row without a primary key needs a table scan."""
_DIFFERS = "nothing was undone: a row was changed since"

COUNTED = "SELECT @zsnapdb_undone"
"""A query that returns how many changes the open transaction has undone so far."""
SESSION = ("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES'", "SET SESSION time_zone = '+00:00'")
"""Session settings with which the literals in the statements have the intended meaning."""


_MOST_NAMED = 3
"""The maximum number of tables for which a hint contains a command."""


def rescue_hint(gtid: str, tables: Iterable[str] = ()) -> str:
    """Return the hint for a transaction that cannot be undone by rows. `tables` contains the known changed tables."""
    known = list(dict.fromkeys(tables))[:_MOST_NAMED] or ["SCHEMA.TABLE"]
    commands = [
        f"`zsnapdb rescue --table {shlex.quote(name)} --to before-{gtid}"
        f" --into {shlex.quote(name.replace('/', '_') + '.sql')}`"
        for name in known
    ]
    return f"restore next to the server, or rescue each table: {', '.join(commands)}"


@dataclass(frozen=True)
class LoggedRow:
    """The values of a row `before` and `after` a change, by column position; None if the row did not exist."""

    schema: str
    table: str
    kind: ChangeKind
    columns: tuple[LoggedColumn, ...]
    before: dict[int, bytes | None] | None
    after: dict[int, bytes | None] | None


@dataclass(frozen=True)
class RowChange:
    """The values of a row `before` and `after` a change, by column name; None if the row did not exist.

    If the values come from a binlog, JSON columns and columns that binlog_row_image omits may be missing.
    """

    shape: TableShape
    kind: ChangeKind
    before: dict[str, SqlValue] | None
    after: dict[str, SqlValue] | None

    @property
    def key(self) -> dict[str, SqlValue]:
        """The values of the primary key after the change, or before the change if it deleted the row."""
        row = self.after if self.after is not None else self.before or {}
        return {column.name: row[column.name] for column in self.shape.columns if column.key_part}


def shape_objection(shape: TableShape) -> str | None:
    """Return why no change of this table can be undone; None if there is no objection."""
    if not shape.columns:
        return f"table {shape.name} does not exist, or the account cannot see it"
    if not shape.is_base or shape.engine.casefold() != "innodb":
        return f"{shape.name} is no plain InnoDB table, so the undo could not be all or nothing"
    names = "".join([shape.name, *(column.name for column in shape.columns)])
    if "\\" in names or printable(names) != names:
        return f"{printable(shape.name)} or a column has a backslash or control character, which a client may misread"
    if not shape.has_key and shape.foreign_keys:
        return f"{shape.name} has no primary key, and {shape.foreign_keys[0]}, which needs to know which row is which"
    generated = {column.name for column in shape.columns if column.is_generated}
    if any(generated & set(key.to_columns) for key in shape.cascades):
        return f"{shape.cascades[0]} refers to a generated column of {shape.name}, and changes rows with it"
    if shape.triggers:
        return f"{shape.name} has triggers, which would change other rows a second time"
    unreadable = [
        column
        for column in shape.columns
        if not (column.is_generated or is_readable(column) or (is_readable_on_server(column) and not column.key_part))
    ]
    if unreadable:
        return f"values of {shape.name}.{unreadable[0].name} cannot be read: its type is {unreadable[0].type}"
    return None


def row_objection(shape: TableShape, row: LoggedRow) -> str | None:
    """Return why this change cannot be undone; None if it can."""
    images = [image for image in (row.before, row.after) if image is not None]
    needed = {place for place, column in enumerate(shape.columns) if column.key_part}
    if not shape.has_key:
        needed = {place for place, column in enumerate(shape.columns) if not column.is_generated}
        unreadable = [column for column in shape.columns if not column.is_generated and not is_readable(column)]
        if unreadable:
            return f"{shape.name} has no primary key, and values of type {unreadable[0].type}"
    if any(not needed <= image.keys() for image in images):
        what = "the primary key of " if shape.has_key else ""
        return f"the binlog has not all values of {what}{shape.name}, by which its rows are found"
    return None


def count_objection(changes: Sequence[RowChange]) -> str | None:
    """Return an objection if there are too many changes for an undo; else None."""
    without_key = [change.shape.name for change in changes if not change.shape.has_key]
    if len(without_key) > MOST_ROWS_WITHOUT_KEY:
        return f"{len(without_key)} rows are of tables without a primary key, such as {without_key[0]}"
    return None


def row_change(shape: TableShape, row: LoggedRow) -> RowChange:
    """Return a row change with its values as SQL, as far as the binlog contains these values.

    Raises ValueError if a value is malformed.
    """
    return RowChange(shape, row.kind, _values(shape, row.before), _values(shape, row.after))


def _values(shape: TableShape, image: dict[int, bytes | None] | None) -> dict[str, SqlValue] | None:
    if image is None:
        return None
    return {
        column.name: sql_value(column, image[place])
        for place, column in enumerate(shape.columns)
        if not column.is_generated and place in image and is_readable(column)
    }


def undoing(change: RowChange) -> str:
    """Return the statement that undoes a change.

    The statement changes one row, or none if the row differs from `after`.
    """
    table = change.shape.quoted
    if change.after is None:
        values = change.before or {}
        names = ", ".join(quoted(name) for name in values)
        literals = ", ".join(value.assigned for value in values.values())
        return f"INSERT INTO {table} ({names}) VALUES ({literals})"  # noqa: S608 - quoted names, literals of ours
    where = " AND ".join(_is_row(change, change.after))
    if change.before is None:
        # If the table has no key, equal rows are interchangeable.
        one = "" if change.shape.has_key else " LIMIT 1"
        return f"DELETE FROM {table} WHERE {where}{one}"  # noqa: S608 - as above
    assignments = ", ".join(f"{quoted(name)} = {value.assigned}" for name, value in change.before.items())
    return f"UPDATE {table} SET {assignments} WHERE {where}"  # noqa: S608 - as above


def _is_row(change: RowChange, values: dict[str, SqlValue]) -> list[str]:
    """Return the SQL conditions for a row: first its key, so that an index is used, then every value, byte by byte."""
    key = [f"{quoted(name)} = {value.assigned}" for name, value in change.key.items()]
    return key + [condition(column, values[column.name]) for column in change.shape.columns if column.name in values]


@dataclass(frozen=True)
class Expectation:
    """A required state before an undo. The query `question` must return a row, or no row if `is_absent` is set."""

    change: RowChange
    question: str
    is_absent: bool


def expectations(changes: Sequence[RowChange]) -> list[Expectation]:
    """Return the expected state of each changed row after the transaction, ordered by the row's first change.

    Tables without a primary key are left out, because their rows are counted instead.
    """
    last: dict[tuple[str, ...], Expectation] = {}
    for change in (change for change in changes if change.shape.has_key):
        shape = change.shape
        table = shape.quoted
        if change.before is not None and change.after is not None:
            old = RowChange(shape, ChangeKind.DELETE, change.before, None)
            if old.key != change.key:
                last[_identity(old)] = _absent(old, table)
        if change.after is None:
            last[_identity(change)] = _absent(change, table)
        else:
            last[_identity(change)] = Expectation(
                change, _select(table, _is_row(change, change.after)), is_absent=False
            )
    return list(last.values())


def _identity(change: RowChange) -> tuple[str, ...]:
    return (change.shape.schema, change.shape.table, *(value.compared for value in change.key.values()))


def _absent(change: RowChange, table: str) -> Expectation:
    # The comparison is byte by byte, because a collation can consider the old and new key equal, for example if only
    # their case differs.
    return Expectation(change, _select(table, _is_row(change, change.key)), is_absent=True)


def _select(table: str, conditions: Sequence[str]) -> str:
    return f"SELECT 1 FROM {table} WHERE {' AND '.join(conditions)}"  # noqa: S608 - quoted names, literals of ours


def undone(changes: Sequence[RowChange]) -> list[Expectation]:
    """Return the expected state of each changed row before the transaction."""
    return expectations([RowChange(one.shape, one.kind, one.after, one.before) for one in reversed(changes)])


def statements(changes: Sequence[RowChange]) -> list[str]:
    """Return the statements that undo the changes, in one transaction of one session.

    The statements commit only if every statement changed its row. Otherwise the statements change nothing and end in an
    error, even if a client continues after an error.
    """
    return [*opening(changes), *changing(changes), *ending(changes)]


def opening(changes: Sequence[RowChange], *, is_guarded: bool = False) -> list[str]:
    """Return the first statements of an undo, which open its transaction.

    If foreign keys cascade, the statements turn the server's foreign key checks off. The undo itself restores the
    cascaded rows, and the server must not change them a second time. In this case `changing` checks the foreign keys.
    All reads lock the rows that they return. With `is_guarded`, the undo fails if a table's definition, triggers or
    foreign keys changed after the script was verified.
    """
    checks = ["SET SESSION foreign_key_checks = 0"] if any(change.shape.cascades for change in changes) else []
    isolation = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    tables = {change.shape.name: change.shape for change in changes}.values() if is_guarded else ()
    guards = [f"SET @zsnapdb_undone = @zsnapdb_undone - ({one})" for table in tables for one in _guards(table)]
    begin = ["SET @zsnapdb_undone = 0", *guards, "START TRANSACTION"]
    return ["SET NAMES utf8mb4", *SESSION, *checks, isolation, *begin]


def _guards(table: TableShape) -> list[str]:
    """Return queries that each return 1 if the table changed after the script was verified, else 0."""
    schema, name = ("'" + text.replace("'", "''") + "'" for text in (table.schema, table.table))
    count, source = "SELECT COUNT(*) <>", "FROM information_schema."
    made = "IS NULL" if table.made is None else f"= {table.made}"
    of_table = f"table_schema = {schema} AND table_name = {name}"
    of_triggers = f"event_object_schema = {schema} AND event_object_table = {name}"
    of_keys = (
        f"(constraint_schema = {schema} AND table_name = {name}) OR"
        f" (unique_constraint_schema = {schema} AND referenced_table_name = {name})"
    )
    return [
        f"{count} 1 {source}tables WHERE {of_table} AND UNIX_TIMESTAMP(create_time) {made}",
        f"{count} {len(table.triggers)} {source}triggers WHERE {of_triggers}",
        f"{count} {len(table.foreign_keys)} {source}referential_constraints WHERE {of_keys}",
    ]


def holding(table: TableShape) -> str:
    """Return the statement that locks the definition of a table in an open transaction."""
    return f"SELECT 1 FROM {table.quoted} LIMIT 0"  # noqa: S608 - a quoted name


def changing(changes: Sequence[RowChange]) -> list[str]:
    """Return the statements that undo the changes in an open transaction and count the undone changes."""
    result = []
    for change in reversed(changes):
        result += [undoing(change), "SET @zsnapdb_undone = @zsnapdb_undone + ROW_COUNT()"]
    if any(change.shape.cascades for change in changes):
        result += [f"SET @zsnapdb_undone = @zsnapdb_undone - ({question})" for question in _orphans(changes)]
    return result


def _orphans(changes: Sequence[RowChange]) -> list[str]:
    """Return queries that count the child rows whose parent row is missing after the undo."""
    found: dict[str, None] = {}
    for change in changes:
        for key in change.shape.foreign_keys:
            pairs = list(zip(key.columns, key.to_columns, strict=True))
            child, parent = quoted(key.schema, key.table), quoted(key.to_schema, key.to_table)
            missing = " AND ".join(f"p.{quoted(to)} = c.{quoted(own)}" for own, to in pairs)
            filled = " AND ".join(f"c.{quoted(own)} IS NOT NULL" for own, _ in pairs)
            for which in _referring(change, key):
                there = f"SELECT 1 FROM {parent} p WHERE {missing}"  # noqa: S608 - quoted names, literals of ours
                found[f"SELECT COUNT(*) FROM {child} c WHERE {which} AND {filled} AND NOT EXISTS ({there})"] = None  # noqa: S608
    return list(found)


def _referring(change: RowChange, key: ForeignKey) -> list[str]:
    """Return the conditions that select the child rows that the undo of a change may orphan."""
    table, result = (change.shape.schema, change.shape.table), []
    if (key.schema, key.table) == table and change.before is not None:
        names = [column.name for column in change.shape.columns if column.key_part]
        result.append(" AND ".join(f"c.{quoted(name)} = {change.before[name].assigned}" for name in names))
    if (key.to_schema, key.to_table) == table and change.after is not None:
        values = [change.after.get(name, NULL) for name in key.to_columns]
        if NULL not in values:
            pairs = zip(key.columns, values, strict=True)
            result.append(" AND ".join(f"c.{quoted(own)} = {value.assigned}" for own, value in pairs))
    return result


def ending(changes: Sequence[RowChange]) -> list[str]:
    """Return the last statements of an undo. The statements commit if all changes were undone.

    Otherwise the statements roll back and fail.

    PREPARE accepts COMMIT, DO and CALL in both server families (refman 8.4, "Prepared Statements"; MariaDB manual).
    """
    is_done = f"@zsnapdb_undone = {len(changes)}"
    result = _prepared(f"IF({is_done}, 'COMMIT', 'DO 0')")
    result.append("ROLLBACK")
    result += _prepared(f"IF({is_done}, 'DO 0', 'CALL `zsnapdb`.`{_DIFFERS}`()')")
    result.append(f"SELECT IF({is_done}, '{len(changes)} changes of rows were undone', '{_DIFFERS}') AS result")
    return result


def script(changes: Sequence[RowChange], comment: str) -> str:
    """Return the statements as a script for the server's command-line client."""
    lines = [
        f"-- {comment}",
        "-- All or nothing: a row that differs from what the transaction left, or a table that was altered since this",
        "-- script was written, prevents the undo.",
    ]
    run = [*opening(changes, is_guarded=True), *changing(changes), *ending(changes)]
    return "\n".join([*lines, *(f"{statement};" for statement in run), ""])


def _prepared(expression: str) -> list[str]:
    return [
        f"SET @zsnapdb_end = {expression}",
        "PREPARE zsnapdb_end FROM @zsnapdb_end",
        "EXECUTE zsnapdb_end",
        "DEALLOCATE PREPARE zsnapdb_end",
    ]


ExactRow = tuple[bytes | None, ...]
"""The values of the `exact_values` expressions for all columns of a row, as a server returns them.

It is empty if the row does not exist. If the table has no primary key, it contains only the number of equal rows.
"""


@dataclass(frozen=True)
class RowQuestion:
    """A query for the row with a given key. The field `key` contains the values of `key_columns` in the same order.

    If the table has no primary key, the query counts the rows with all these values.
    """

    shape: TableShape
    key: tuple[SqlValue, ...]

    @property
    def condition(self) -> str:
        if not self.shape.has_key:
            pairs = zip(key_columns(self.shape), self.key, strict=True)
            return " AND ".join(condition(column, value) for column, value in pairs)
        return " AND ".join(
            f"{self.shape.quoted}.{quoted(column.name)} = {value.assigned}"
            for column, value in zip(key_columns(self.shape), self.key, strict=True)
        )

    @property
    def sql(self) -> str:
        """The statement that returns every value of the row, or no row if it does not exist."""
        values = ", ".join(expression for column in self.shape.columns for expression in exact_values(column))
        values = values if self.shape.has_key else "COUNT(*)"
        return f"SELECT {values} FROM {self.shape.quoted} WHERE {self.condition}"  # noqa: S608 - quoted, or ours

    def __str__(self) -> str:
        named = zip(key_columns(self.shape), self.key, strict=True)
        text = ", ".join(f"{column.name}={value.shown}" for column, value in named)
        return printable(f"row ({text}) of {self.shape.name}")


@dataclass(frozen=True)
class StateBefore:
    """The state directly before a transaction: the definitions of tables, and rows that it changed or may have changed.

    A row that references a changed row by a cascading foreign key may have changed with it.
    """

    shapes: tuple[TableShape, ...]
    questions: tuple[RowQuestion, ...]
    rows: tuple[ExactRow, ...]

    def definition_difference(self, now: Sequence[TableShape]) -> str | None:
        pairs = zip(self.shapes, now, strict=True)
        return next(filter(None, (shape_difference(then, present) for then, present in pairs)), None)

    def split(self, after: Sequence[ExactRow]) -> tuple[StateBefore, tuple[RowQuestion, ...]]:
        """Return the state with only the changed rows, and the queries for the other rows.

        `after` contains the rows directly after the transaction. An undo leaves the other rows as they are now.
        """
        triples = tuple(zip(self.questions, self.rows, after, strict=True))
        changed = [(question, then) for question, then, left in triples if then != left]
        others = tuple(question for question, then, left in triples if then == left)
        asked, rows = tuple(question for question, _ in changed), tuple(then for _, then in changed)
        return StateBefore(self.shapes, asked, rows), others

    def row_difference(self, rows: Sequence[ExactRow]) -> str | None:
        for question, then, now in zip(self.questions, self.rows, rows, strict=True):
            if then != now:
                what = "was not there" if not then else "is not there" if not now else "has other values"
                return f"{question} {what}, compared with right before the transaction"
        return None


def key_columns(shape: TableShape) -> list[ValueColumn]:
    """Return the primary key columns in table order.

    If there is no primary key, return all columns that are not generated.
    """
    return [column for column in shape.columns if column.key_part or not (shape.has_key or column.is_generated)]


def tables_of(changes: Sequence[RowChange]) -> tuple[TableShape, ...]:
    """Return the tables with changed rows. Each table occurs once."""
    return tuple({change.shape.name: change.shape for change in changes}.values())


def questions(changes: Sequence[RowChange]) -> tuple[RowQuestion, ...]:
    """Return one query for each key of a changed row, ordered by the last change of the row.

    If the key of a row was changed, the old key comes before the new key. An undo runs backwards and must free the new
    key first.
    """
    found: dict[tuple[str, ...], RowQuestion] = {}
    for change in changes:
        for row in (change.before, change.after):
            if row is not None:
                key = tuple(row[column.name] for column in key_columns(change.shape))
                identity = (change.shape.schema, change.shape.table, *(value.compared for value in key))
                found.pop(identity, None)
                found[identity] = RowQuestion(change.shape, key)
    return tuple(found.values())


def referring(question: RowQuestion, key: ForeignKey, child: TableShape) -> str:
    """Return the SELECT that finds the keys of the child rows that reference the row."""
    values = ", ".join(f"CAST(c.{quoted(column.name)} AS BINARY)" for column in key_columns(child))
    pairs = zip(key.columns, key.to_columns, strict=True)
    joined = " AND ".join(f"c.{quoted(own)} = {question.shape.quoted}.{quoted(to)}" for own, to in pairs)
    return (
        f"SELECT {values} FROM {question.shape.quoted} JOIN {child.quoted} c ON {joined}"  # noqa: S608 - quoted, or ours
        f" WHERE {question.condition}"
    )


def proven_changes(
    asked: Sequence[RowQuestion], before: Sequence[ExactRow], after: Sequence[ExactRow]
) -> tuple[RowChange, ...]:
    """Return the row changes, as the differences between the rows before and after the transaction.

    Each row occurs once.
    """
    found: dict[tuple[object, ...], RowChange] = {}
    for question, then, left in zip(asked, before, after, strict=True):
        if not question.shape.has_key:
            found.update(((question, number), one) for number, one in enumerate(_copies(question, then, left)))
        elif then != left:
            kind = ChangeKind.INSERT if not then else ChangeKind.UPDATE if left else ChangeKind.DELETE
            shape = question.shape
            # Keys that the collation considers equal select the same row.
            found.setdefault((shape.name, then, left), RowChange(shape, kind, _row(shape, then), _row(shape, left)))
    return tuple(found.values())


def _copies(question: RowQuestion, then: ExactRow, left: ExactRow) -> list[RowChange]:
    names = (column.name for column in key_columns(question.shape))
    row, more = dict(zip(names, question.key, strict=True)), _number(left) - _number(then)
    if more < 0:
        return [RowChange(question.shape, ChangeKind.DELETE, row, None)] * -more
    return [RowChange(question.shape, ChangeKind.INSERT, None, row)] * more


def _number(exact: ExactRow) -> int:
    return int(exact[0] or b"0")


def count_difference(
    logged: Sequence[RowChange], asked: Sequence[RowQuestion], before: Sequence[ExactRow], after: Sequence[ExactRow]
) -> str | None:
    """Return a difference in the number of equal rows between the binlog and the clones; None if there is none.

    Only tables without a primary key are compared.
    """
    counts: Counter[RowQuestion] = Counter()
    for change in logged:
        if not change.shape.has_key:
            for row, sign in ((change.before, -1), (change.after, 1)):
                if row is not None:
                    key = tuple(row[column.name] for column in key_columns(change.shape))
                    counts[RowQuestion(change.shape, key)] += sign
    for question, then, left in zip(asked, before, after, strict=True):
        if not question.shape.has_key and counts[question] != _number(left) - _number(then):
            return f"the number of rows like {question} changed by {_number(left) - _number(then)} in the clones"
    return None


def _row(shape: TableShape, exact: ExactRow) -> dict[str, SqlValue] | None:
    if not exact:
        return None
    values, at = {}, 0
    for column in shape.columns:
        if not column.is_generated:
            values[column.name] = server_value(column, exact[at])
        at += len(exact_values(column))
    return values


def needs_same_definition(
    logged: Sequence[RowChange], asked: Sequence[RowQuestion], then: Mapping[str, TableShape]
) -> str | None:
    """Return why a value that was read from the clone may belong to another column; None if this is impossible.

    A replay wrote this value to the clone, and a replay cannot repeat DDL that was not logged. So the clone's table
    must have the same definition and the same creation time as the present table.
    """
    whole = {change.shape.name: True for change in logged}
    for change in logged:
        images = [image for image in (change.before, change.after) if image is not None]
        names = {column.name for column in change.shape.columns if not column.is_generated}
        whole[change.shape.name] &= all(names <= image.keys() for image in images)
    for question in asked:
        shape = question.shape
        made = then[shape.name].made
        if not whole.get(shape.name, False) and (made is None or made != shape.made):
            return (
                f"the binlog has not all values of {shape.name} (JSON, binlog_row_image, CASCADE), and since the"
                " snapshot before the transaction its definition was changed outside the binlog, or the table was"
                " recreated"
            )
    return None
