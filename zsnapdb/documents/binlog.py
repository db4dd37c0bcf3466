"""The documents about binlogs: archiving, the archive, a purge, searches, and transactions that can be undone."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from zsnapdb.documents.base import At, Document, ErrorFields, each, errors_fields, iso, moment, or_null, read


class UnprotectedFields(Document):
    """The reason why the server's current changes cannot be restored."""

    kind: str
    reason: str


class RepeatedGtidsFields(Document):
    """GTIDs that also occur in an earlier history."""

    history: str
    gtids: str


class ArchivingDocument(Document):
    """A round of binlog archiving."""

    file: Annotated[str | None, At("end.file")]
    offset: Annotated[int | None, At("end.offset")]
    gtids: Annotated[str | None, At("gtids", str)]
    last_commit: Annotated[str | None, At("last_commit", moment)]
    complete_until: Annotated[str | None, At("complete_until", moment)]
    transactions: int
    plain_bytes: Annotated[int, At("plain_size")]
    rotated: tuple[str, ...]
    begun: Annotated[str | None, At("new_incarnation")]
    gaps: tuple[str, ...]
    unprotected: UnprotectedFields | None
    repeated_gtids: Annotated[tuple[RepeatedGtidsFields, ...], At("repeated")]
    problems: tuple[str, ...]


class ArchivedBinlogFields(Document):
    """An archived binlog. The text `gap` describes the missing part directly before it."""

    name: Annotated[str, At("file.name")]
    rotated: Annotated[bool, At("file.is_rotated")]
    segments: Annotated[int, At("file.segments", len)]
    bytes: Annotated[int, At("file.end")]
    stored_bytes: Annotated[int, At("file.stored_size")]
    previous_gtids: Annotated[str | None, At("file.head.previous_gtids")]
    gtids: Annotated[str | None, At("file.span.gtids")]
    first_gtid: Annotated[str | None, At("file.span.first_gtid")]
    last_gtid: Annotated[str | None, At("file.span.last_gtid")]
    transactions: Annotated[int, At("file.span.transactions")]
    first_commit: Annotated[str | None, At("file.span.first_commit", moment)]
    last_commit: Annotated[str | None, At("file.span.last_commit", moment)]
    exact: Annotated[bool, At("file.span.is_exact")]
    sha256: Annotated[str | None, At("file.sha256", or_null)]
    gap: str | None


class IncarnationFields(Document):
    """An incarnation with its archived binlogs."""

    id: Annotated[str, At("incarnation.id")]
    flavour: Annotated[str, At("incarnation.flavour")]
    server_uuid: Annotated[str | None, At("incarnation.server_uuid")]
    server_id: Annotated[int, At("incarnation.server_id")]
    began: Annotated[str, At("incarnation.began", iso)]
    reason: Annotated[str, At("incarnation.reason")]
    files: tuple[ArchivedBinlogFields, ...]


class BinlogArchiveDocument(Document):
    """The archived binlogs."""

    incarnations: Annotated[tuple[IncarnationFields, ...], At("histories")]
    damaged: Annotated[tuple[ErrorFields, ...], At("archive.damaged", errors_fields)]


class PurgeDocument(Document):
    """The binlogs that a purge removes or has removed. It first reads the archived copies in the list `read`."""

    names: tuple[str, ...]
    stays: str
    read: Annotated[tuple[str, ...], At("unread")]
    warnings: tuple[str, ...]


class ChangedTableFields(Document):
    """A table, and how many of its rows a transaction changed."""

    of_schema: Annotated[str, At("schema")] = Field(alias="schema")
    table: str
    inserted: int
    updated: int
    deleted: int
    counted: Annotated[bool, At("is_counted")]


class StatementFields(Document):
    """A statement in the binlog. The field `cut` says whether the text is truncated."""

    kind: str
    of_schema: Annotated[str | None, At("schema")] = Field(alias="schema")
    text: str
    cut: Annotated[bool, At("is_cut")]


class TransactionDocument(Document):
    """A transaction in the binlogs."""

    gtid: Annotated[str | None, At("changes.gtid")]
    committed: Annotated[str, At("changes.committed", moment)]
    exact: Annotated[bool, At("changes.is_exact")]
    began: Annotated[str, At("changes.began", moment)]
    kinds: Annotated[tuple[str, ...], At("changes.kinds", each(""))]
    rows: Annotated[int, At("changes.rows")]
    rows_known: Annotated[bool, At("changes.are_rows_known")]
    bytes: Annotated[int, At("changes.size")]
    binlog: str
    history: str | None
    start: Annotated[int, At("changes.start")]
    end: Annotated[int, At("changes.end")]
    compressed: Annotated[bool, At("changes.is_compressed")]
    match: Annotated[str, At("match", lambda match: match.name.lower())]
    tables: Annotated[tuple[ChangedTableFields, ...], At("changes.tables")]
    statements: Annotated[tuple[StatementFields, ...], At("changes.statements")]
    annotation: Annotated[str | None, At("changes.annotation")]
    unknown: Annotated[tuple[str, ...], At("changes.unknown")]


class ReadBinlogFields(Document):
    """A binlog that was read."""

    name: str
    history: str | None
    bytes: Annotated[int, At("size")]


class SearchDocument(Document):
    """The transactions that a search selects."""

    matched: int
    transactions: tuple[TransactionDocument, ...]
    read: tuple[ReadBinlogFields, ...]
    archive_asked: Annotated[bool, At("asks_archive")]
    problems: Annotated[tuple[ErrorFields, ...], At("problems", errors_fields)]


def _sql_values(values: Any) -> dict[str, str]:
    return {name: value.shown for name, value in values.items()}


class RowChangeFields(Document):
    """A changed row: its key, and its columns before and after, as SQL."""

    of_schema: Annotated[str, At("shape.schema")] = Field(alias="schema")
    table: Annotated[str, At("shape.table")]
    kind: str
    key: Annotated[dict[str, str], At("key", _sql_values)]
    before: Annotated[dict[str, str] | None, At("before", _sql_values)]
    after: Annotated[dict[str, str] | None, At("after", _sql_values)]


class ConflictFields(RowChangeFields):
    """A row that prevents the undo, and why: `exists-again` or `differs`."""

    reason: str


def _conflicts(conflicts: Any) -> list[dict[str, Any]]:
    return [
        {**read(RowChangeFields, one.change), "reason": "exists-again" if one.is_new else "differs"}
        for one in conflicts
    ]


class UndoDocument(Document):
    """The rows that a transaction changed."""

    gtid: str
    committed: Annotated[str, At("transaction.committed", moment)]
    changes: tuple[RowChangeFields, ...]
    conflicts: Annotated[tuple[ConflictFields, ...], At("conflicts", _conflicts)]
    tried: Annotated[bool, At("is_tried")]
    applied: Annotated[bool, At("is_applied")]
    file: str | None
