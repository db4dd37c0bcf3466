"""Digests of rows of a server, by questions for their keys."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog.undo_proof import RowQuestion


def row_digests(session: Session, questions: Sequence[RowQuestion]) -> tuple[bytes, ...]:
    """Return a digest of every value of each row, in the order of the questions; an empty one if there is no row.

    Only the digests are kept. Two sessions give the same digest if all values are the same byte by byte.
    """
    return tuple(_digest(session, question) for question in questions)


def _digest(session: Session, question: RowQuestion) -> bytes:
    rows = session.query(question.sql)
    if not rows:
        return b""
    proof = hashlib.sha256()
    for value in (value for row in rows for value in row):
        data = value if isinstance(value, bytes) else str(value).encode()
        proof.update(b"N" if value is None else b"V%d:" % len(data))
        proof.update(b"" if value is None else data)
    return proof.digest()
