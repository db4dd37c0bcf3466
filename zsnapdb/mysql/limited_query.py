"""Runs one statement with a result that is limited in rows, characters and time."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.mysql.accounts import read_only_transaction
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.server_family import family, flavour_in
from zsnapdb.planning.sql_quoting import quoted

Cell = str | int | float | bool | None
_BATCH = 20


@dataclass(frozen=True)
class QueryLimits:
    """The limits of a result: rows, characters per value, characters of all values, and seconds."""

    rows: int = 200
    cell: int = 2000
    characters: int = 60_000
    seconds: int = 30


@dataclass(frozen=True)
class LimitedRows:
    """The rows of a result. `left_out` describes the omitted rows and characters ("" if nothing is omitted)."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left_out: str = ""


def limited_rows(
    address: Address, password: SecretStr, statement: str, limits: QueryLimits, *, database: str | None, writes: bool
) -> LimitedRows:
    """Run one statement in its own session and return its rows.

    Without `writes`, the session and its transaction are read-only. The server ends a statement that takes too long; if
    the server cannot do this, the session is closed. Only a few rows are in memory at a time. Raises ServerError if the
    statement fails.
    """
    with Session.open(address, password, read_timeout=limits.seconds + 5.0, of_users=True) as session:
        flavour = flavour_in(str(session.value("SELECT CONCAT(@@version, ' ', @@version_comment)")))
        if not writes:
            read_only_transaction(session, flavour)
        if family(flavour).limits_statements:
            session.query(f"SET SESSION max_statement_time = {limits.seconds}")
        else:
            session.query(f"SET SESSION max_execution_time = {limits.seconds * 1000}")
        # One row beyond the limit shows that the result has more rows. A LIMIT in the statement takes precedence.
        session.query(f"SET SESSION sql_select_limit = {limits.rows + 1}")
        if database is not None:
            session.query(f"USE {quoted(database)}")
        columns, stream = session.stream(statement, batch=_BATCH, times_as_text=True)
        found, characters = list[tuple[Cell, ...]](), 0
        with closing(stream):  # type: ignore[type-var]
            for row in stream:
                cells = tuple(_cell(value, limits.cell) for value in row)
                characters += sum(len(str(cell)) for cell in cells)
                if len(found) == limits.rows:
                    return LimitedRows(columns, found, f"there are more than {limits.rows} rows")
                if characters > limits.characters:
                    return LimitedRows(columns, found, f"there are more than {limits.characters} characters")
                found.append(cells)
        return LimitedRows(columns, found)


def _cell(value: object, most: int) -> Cell:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        text = f"0x{value[: most // 2].hex()}"
        return text if len(value) <= most // 2 else f"{text}… ({len(value)} bytes)"
    text = value.isoformat() if isinstance(value, datetime.date) else str(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
