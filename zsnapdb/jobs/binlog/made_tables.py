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
    """Return what the server says of the tables that are still as their statement made them.

    Nothing if the server does not answer or is another one by now: then a restore names the tables it knows nothing of.
    """
    as_made = [table for table in tables if table.table and not table.is_touched][:MOST_MADE]
    if not as_made:
        return ()
    try:
        with instance.session(read_timeout=5.0) as session:
            if find_source(session) != source:
                return ()
            said = [(made.offset, made_as(session, made.schema, made.table)) for made in as_made]
    except (ServerError, PreflightError):
        return ()
    found = [(offset, *map(_word, words)) for offset, words in said if words is not None]
    return tuple(
        MadeTablePart(offset=offset, engine=engine, collation=collation, row_format=row_format)
        for offset, engine, collation, row_format in found
        if engine is not None
    )


def _word(value: object) -> str | None:
    text = "" if value is None else str(value)
    return text if _NAME.fullmatch(text) is not None else None
