"""Asks the server for the tables that its newest statements made without ENGINE: no binlog says their engine."""

from __future__ import annotations

import re
from collections.abc import Iterable

from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.files import BinlogSource, find_source
from zsnapdb.mysql.schema.tables import made_as
from zsnapdb.planning.binlog.made_tables import MOST_MADE, MadeTable
from zsnapdb.repository.binlog_descriptions import MadeTablePart

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def made_parts(instance: Instance, source: BinlogSource, tables: Iterable[MadeTable]) -> tuple[MadeTablePart, ...]:
    """Return what the server says of the tables that still have the engine with which their statement made them.

    What an ALTER since then may have changed is left out.

    Nothing if the server does not answer or is another one by now: then a restore names the tables it knows nothing of.
    """
    as_made = [table for table in tables if table.table and not table.is_touched][:MOST_MADE]
    if not as_made:
        return ()
    try:
        with instance.session(read_timeout=5.0) as session:
            if find_source(session) != source:
                return ()
            said = [(made, made_as(session, made.schema, made.table)) for made in as_made]
    except (ServerError, PreflightError):
        return ()
    return tuple(part for made, words in said if words is not None and (part := _part(made, *map(_word, words))))


def _part(made: MadeTable, engine: str | None, collation: str | None, row_format: str | None) -> MadeTablePart | None:
    if engine is None:
        return None
    return MadeTablePart(
        offset=made.offset,
        engine=engine,
        collation=None if made.is_converted else collation,
        row_format=None if made.is_altered else row_format,
    )


def _word(value: object) -> str | None:
    text = "" if value is None else str(value)
    return text if _NAME.fullmatch(text) is not None else None
