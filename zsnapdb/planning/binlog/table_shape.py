"""The definition of a table, and whether it is the one that a transaction changed. Pure.

A binlog identifies the values of a row by column position. The meaning of a position is proved, never guessed: by
column names in the binlog, or by a definition that is older than the transaction. In addition, the definition directly
before the transaction, in a clone, must equal the present one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.patterns import printable
from zsnapdb.planning.binlog.row_values import LoggedColumn, ValueColumn, form_difference
from zsnapdb.planning.sql_quoting import quoted

METADATA_HINT = "SET PERSIST binlog_row_metadata = FULL (MariaDB: in an option file) lets later transactions be undone"


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key of the table, or of another table that refers to it."""

    schema: str
    name: str
    table: str
    columns: tuple[str, ...]
    to_schema: str
    to_table: str
    to_columns: tuple[str, ...]
    on_update: str
    on_delete: str

    @property
    def changes_rows(self) -> bool:
        """Whether a change or deletion of referenced rows changes rows of `table`."""
        return not {self.on_update, self.on_delete} <= {"RESTRICT", "NO ACTION"}

    def __str__(self) -> str:
        return printable(f"foreign key {self.schema}.{self.name}")


@dataclass(frozen=True)
class UniqueKey:
    """A primary or unique key with its parts in order: columns with prefix lengths, or expressions."""

    name: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"unique key {printable(self.name)}"


@dataclass(frozen=True)
class Trigger:
    """A trigger of the table."""

    name: str
    when: str
    statement: str

    def __str__(self) -> str:
        return f"trigger {printable(self.name)}"


@dataclass(frozen=True)
class TableShape:
    """The properties of a table that decide whether its changes can be undone.

    `made` is the time of the last change of columns, in seconds since 1970 by the server's clock (None: unknown). The
    server also updates it for changes that are in no binlog.
    """

    schema: str
    table: str
    columns: tuple[ValueColumn, ...]
    engine: str = "InnoDB"
    is_base: bool = True
    keys: tuple[UniqueKey, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    made: int | None = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        return quoted(self.schema, self.table)

    @property
    def has_key(self) -> bool:
        return any(column.key_part for column in self.columns)

    @property
    def cascades(self) -> tuple[ForeignKey, ...]:
        """The foreign keys that change other rows together with rows of this table."""
        return tuple(
            key
            for key in self.foreign_keys
            if key.changes_rows and (key.to_schema, key.to_table) == (self.schema, self.table)
        )


def logged_difference(shape: TableShape, logged: Sequence[LoggedColumn], began: int) -> str | None:
    """Return why the columns of a table map may not be those of the table; None if they are proved to be.

    `began` is the start of the transaction in seconds since 1970.
    """
    if len(logged) != len(shape.columns):
        return f"{shape.name} has {len(shape.columns)} columns, and had {len(logged)} then"
    for column, then in zip(shape.columns, logged, strict=True):
        difference = form_difference(column, then)
        if difference is not None:
            return f"column {printable(column.name)} of {shape.name} {difference} in the transaction"
    if all(then.name is not None for then in logged):
        return None
    if shape.made is not None and shape.made < began:
        return None
    return (
        f"the binlog has no names of columns (binlog_row_metadata is not FULL), and {shape.name} was made or changed"
        " after the transaction began, so which values were in which column is not known"
    )


def shape_difference(then: TableShape, now: TableShape) -> str | None:
    """Return how the definition differs from that directly before the transaction; None if it does not."""
    if not then.columns:
        return f"there was no table {now.name} right before the transaction"
    if then.engine.casefold() != now.engine.casefold() or then.is_base != now.is_base:
        return f"{now.name} is of engine {now.engine} now, and was of {then.engine} right before the transaction"
    names = [column.name for column in then.columns], [column.name for column in now.columns]
    if names[0] != names[1]:
        lists = [printable(", ".join(each)) for each in names]
        return f"{now.name} has the columns {lists[1]} now, and had {lists[0]} right before the transaction"
    for old, new in zip(then.columns, now.columns, strict=True):
        if old != new:
            facts = " and ".join(_described(column) for column in (old, new))
            return f"column {printable(new.name)} of {now.name} was and is something else: {facts}"
    for kind in ("keys", "foreign_keys", "triggers"):
        old_ones, new_ones = set(getattr(then, kind)), set(getattr(now, kind))
        for gone in sorted(map(str, old_ones - new_ones)):
            return f"{now.name} had the {gone} right before the transaction, and has it no more, or another one"
        for more in sorted(map(str, new_ones - old_ones)):
            return f"{now.name} has the {more} now, and had it not right before the transaction"
    return None


def _described(column: ValueColumn) -> str:
    parts = [column.full_type, column.collation or "", "" if column.is_nullable else "NOT NULL", column.expression]
    key = f"part {column.key_part} of the primary key" if column.key_part else ""
    return printable(" ".join(part for part in (*parts, key) if part))
