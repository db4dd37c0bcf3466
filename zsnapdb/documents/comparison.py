"""The documents of queries, comparisons, branches, and rehearsals of migrations and upgrades."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from zsnapdb.documents.base import At, Document, each, iso, or_null
from zsnapdb.documents.clone import CloneFields

PlainValue = str | int | float | None
"""A value in a document. Numbers stay numbers, and every other value becomes text."""


def plain(value: Any) -> Any:
    """Return a value for a JSON document.

    Numbers stay numbers. Decimals and times become text. Bytes come only from columns without a character set (BINARY,
    BLOB, BIT). Bytes always become 0x and hexadecimal digits, so that all values of a column have the same format.
    """
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return time_text(value)
    if isinstance(value, date | datetime):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    return value


def time_text(value: timedelta) -> str:
    """Return a TIME as the server writes it: hours up to 838, and a sign (refman 8.4, "The TIME Type")."""
    microseconds = abs(value) // timedelta(microseconds=1)
    seconds, fraction = divmod(microseconds, 1_000_000)
    hours, rest = divmod(seconds, 3600)
    digits = f".{fraction:06d}" if fraction else ""
    return f"{'-' if value < timedelta(0) else ''}{hours:02d}:{rest // 60:02d}:{rest % 60:02d}{digits}"


def _plain_values(values: Iterable[Any]) -> list[Any]:
    return [plain(value) for value in values]


class MomentFields(Document):
    """The state of the data that a query or comparison read."""

    requested: str
    backup_id: str | None
    made: Annotated[str | None, At("made", iso)]
    position: Annotated[str | None, At("position", or_null)]
    match: str
    exact: Annotated[bool, At("is_exact")]
    reason: Annotated[str | None, At("reason", or_null)]
    history: str | None


class AnswerDocument(Document):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[PlainValue, ...], ...]
    count: int
    moment: MomentFields


class ChangeFields(Document):
    """A differing row. If the row does not exist in one state, its `before` or `after` is null."""

    change: Annotated[str, At("kind")]
    key: Annotated[tuple[PlainValue, ...], At("key", _plain_values)]
    before: Annotated[tuple[PlainValue, ...] | None, At("before", _plain_values)]
    after: Annotated[tuple[PlainValue, ...] | None, At("after", _plain_values)]


class DifferenceDocument(Document):
    """The rows of a table that differ between two moments."""

    columns: tuple[str, ...]
    changes: tuple[ChangeFields, ...]
    table: str
    added: int
    removed: int
    changed: int
    to: MomentFields
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    begin: MomentFields = Field(alias="from")


class BranchFields(Document):
    """A branch.

    The field `head` is the newest commit of the branch (null: no commit yet). The fields `created` and `message` come
    from the newest commit.
    """

    name: str
    head: str | None
    created: str | None
    message: str | None
    current: bool


class BranchesDocument(Document):
    """The branches of a clone, and the current branch.

    The field `made` is the commit that was created for a new branch, or null if no commit was created.
    """

    clone: Annotated[str, At("seen.info.label")]
    current: Annotated[str, At("seen.branches.current")]
    branches: tuple[BranchFields, ...]
    made: Annotated[str | None, At("seen.made", or_null)]


class SwitchedDocument(Document):
    """A clone after a switch. The field `committed` says whether the previous branch got the new commit `left_head`."""

    clone: Annotated[CloneFields, At("info")]
    branch: Annotated[str, At("branches.current")]
    head: Annotated[str | None, At("branches.head", or_null)]
    left: str
    left_head: Annotated[str | None, At("left_head", or_null)]
    committed: Annotated[bool, At("is_new_commit")]


class LoggedCommitFields(Document):
    """A commit in the log of a branch. The field `branches` lists the branches whose newest commit is this commit."""

    id: str
    parent: str | None
    created: str
    message: str
    branches: tuple[str, ...]


class BranchLogDocument(Document):
    """The commits that lead to a branch or a commit, newest first. The state before the oldest commit is `begins`."""

    clone: Annotated[str, At("seen.info.label")]
    of: str
    commits: tuple[LoggedCommitFields, ...]
    begins: str | None


class TableDifferenceFields(Document):
    """A table at two commits. A number of rows is null if the table does not exist at that commit.

    The field `by` is `key` (rows are compared by primary key), `checksum` (with the `reason`), or `presence`. `added`,
    `removed` and `changed` are null unless `by` is `key`. The field `columns` lists the columns of the values in
    `changes`.
    """

    table: Annotated[str, At("name", str)]
    same: Annotated[bool, At("is_same")]
    by: Annotated[str, At("compared_by")]
    reason: Annotated[str | None, At("reason", or_null)]
    rows_before: Annotated[int | None, At("before")]
    rows_after: Annotated[int | None, At("after")]
    added: Annotated[int | None, At("rows.added")]
    removed: Annotated[int | None, At("rows.removed")]
    changed: Annotated[int | None, At("rows.changed")]
    columns: Annotated[tuple[str, ...], At("shape.common", each("name"), ())]
    changes: tuple[ChangeFields, ...]


class BranchDifferenceDocument(Document):
    """Comparison of two commits of a clone. The field `schema_difference` is a unified diff of all definitions.

    The field `left_out` says whether differing rows or definitions were omitted because there are too many.
    """

    clone: Annotated[str, At("info.label")]
    before: Annotated[str, At("before.set.backup_id")]
    after: Annotated[str, At("after.set.backup_id")]
    same: Annotated[bool, At("is_same")]
    schema_difference: Annotated[str, At("schema")]
    tables: tuple[TableDifferenceFields, ...]
    left_out: Annotated[bool, At("is_whole", lambda whole: not whole)]


class MigratedTableFields(Document):
    """A table that the migration affects: created, dropped, redefined, rewritten or written to."""

    table: Annotated[str, At("name", str)]
    effects: Annotated[tuple[str, ...], At("effects", sorted)]


class WaitFields(Document):
    """The longest wait of a reader or writer of a table, in seconds, during and before the migration."""

    table: Annotated[str, At("table", str)]
    access: str
    longest_seconds: Annotated[float, At("longest")]
    before_seconds: Annotated[float, At("before")]
    asked: int
    failed: int
    error: str


class RecordedLoadFields(Document):
    """The recorded load during the migration: the number of applied transactions, and the seconds that production took.

    - `late_seconds`: longest delay of a transaction during the migration.
    - `late_before_seconds`: longest delay in the seconds before the migration.
    - `through`: whether the whole load was applied before the migration ended.
    - `error`: the error that stopped the load.
    """

    transactions: int
    seconds: float
    late_seconds: Annotated[float, At("late")]
    late_before_seconds: Annotated[float, At("late_before")]
    through: Annotated[bool, At("is_through")]
    error: str


class MigrationDocument(Document):
    """The effects of a migration. The field `second_run` is the effect of a repetition.

    The field `without_table_seconds` is the longest wait of a statement that uses no table. This wait measures the
    host's load. The field `load` is null if no load was replayed.
    """

    backup_id: str
    command: tuple[str, ...]
    masked: Annotated[bool, At("is_masked")]
    seconds: Annotated[float, At("findings.run.seconds")]
    failure: Annotated[str, At("findings.run.failure")]
    tables: tuple[MigratedTableFields, ...]
    waits: Annotated[tuple[WaitFields, ...], At("findings.waits")]
    without_table_seconds: Annotated[float, At("findings.without_table")]
    unwatched_tables: Annotated[int, At("unwatched")]
    second_run: Annotated[str, At("findings.again")]
    load: Annotated[RecordedLoadFields | None, At("findings.load")]
    own_bytes: int
    schema_difference: Annotated[str, At("difference")]
    problems: tuple[str, ...]


class PhaseFields(Document):
    """A phase of the rehearsal."""

    name: str
    seconds: float


class CheckedTableFields(Document):
    """A checked table, and the answer of the server."""

    table: Annotated[str, At("table", str)]
    answer: str
    good: Annotated[bool, At("is_good")]


class ComparedQueryFields(Document):
    """A query before and after the upgrade."""

    query: str
    rows_before: Annotated[int, At("before.rows")]
    rows_after: Annotated[int | None, At("after.rows")]
    equal: Annotated[bool, At("is_equal")]
    problem: str


class RehearsalDocument(Document):
    """The rehearsal of an upgrade."""

    backup_id: str
    old_version: str
    new_version: str
    phases: tuple[PhaseFields, ...]
    tables: tuple[CheckedTableFields, ...]
    queries: tuple[ComparedQueryFields, ...]
    warnings: tuple[str, ...]
    upgrade_output: str
    problems: tuple[str, ...]
