"""Whether a text is one statement that only reads, by its first word. Pure.

A read-only session alone does not hold every statement back. A statement that commits implicitly ends the transaction
first, and is then refused only because the session is read only too. But `SET` makes the session write again, and a
block or a procedure can begin a transaction of its own that writes (`BEGIN NOT ATOMIC`, `CALL`, `EXECUTE IMMEDIATE`).
Of the statements that begin with these words none can. Source: refman 8.4 and MariaDB manual, "SET TRANSACTION",
"START TRANSACTION", "Compound Statements"; `tests/system/test_clones.py` tries it on both servers.
"""

from __future__ import annotations

import re

READERS = ("SELECT", "WITH", "SHOW", "EXPLAIN", "DESCRIBE", "DESC", "TABLE", "VALUES")
LONGEST = 64 * 1024
_FIRST = re.compile(r"\s*\(*\s*([A-Za-z]+)(?![\w$])")


def refusal_of(statement: str) -> str:
    """Return why the statement is not run by who may only read; "" if it may be.

    A comment before the first word is refused: what stands in one can be for the server (`/*! … */`).
    """
    if len(statement) > LONGEST:
        return f"the statement is longer than {LONGEST} characters"
    first = _FIRST.match(statement)
    if first is None or first.group(1).upper() not in READERS:
        return f"only statements that begin with {', '.join(READERS)} are run, without a comment before"
    return ""
