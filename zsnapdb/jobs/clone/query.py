"""Answers from the past: a query, or what changed in a table, read from throwaway clones that are gone afterwards."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.clone import state_at
from zsnapdb.jobs.clone.create import CloneRequest
from zsnapdb.jobs.clone.ephemeral import OWNER, throwaway
from zsnapdb.jobs.clone.state_at import How, Moment
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import Flavour
from zsnapdb.mysql.session import Address, Row, Session
from zsnapdb.planning.clone import diff as planning
from zsnapdb.planning.clone.diff import Change, ChangeKind, Column, Shape

_READER = "zsnapdb_reader"
_BATCH = 100
_LONGEST_SECONDS = 86400.0
_TABLE = re.compile(r"^([^.]+)\.(.+)$")

Rows = Callable[[tuple[str, ...], Iterator[Row]], None]
"""Takes the column names and the rows as they arrive."""

Changes = Callable[[Shape, Iterator[Change]], None]
"""Takes what is compared and the changes as they are found."""


@dataclass(frozen=True)
class Answer:
    """A query that was answered: of which moment, and how many rows."""

    moment: Moment
    rows: int


@dataclass(frozen=True)
class Difference:
    """A table compared between two moments: how many rows were added, removed, changed."""

    table: str
    begin: Moment
    end: Moment
    shape: Shape
    added: int
    removed: int
    changed: int


def query(settings: Settings, instance: Instance, at: str, sql: str, emit: Rows) -> Answer:
    """Run one statement on a throwaway clone of the moment `at` and hand its rows to `emit` as they arrive.

    The account it runs under may read and nothing else, in a read-only transaction. Afterwards the clone is gone.
    """
    moment = state_at.find(settings, instance, at)
    counted = _Counter()
    with past(settings, instance, moment) as session:
        columns, rows = session.stream(sql, batch=_BATCH)
        emit(columns, counted.through(rows))
    return Answer(moment, counted.number)


def diff(settings: Settings, instance: Instance, table: str, begin: str, end: str, emit: Changes) -> Difference:
    """Compare a table (schema.name) at two moments by its primary key and hand the changes to `emit` as they are found, in constant memory.

    Afterwards both clones are gone. PreflightError if the table has no primary key, or not the same one.
    """
    match = _TABLE.match(table)
    if match is None:
        raise PreflightError(f"{table!r} is no table", hint="name it as schema.table")
    schema, name = match.groups()
    first, second = state_at.find(settings, instance, begin), state_at.find(settings, instance, end)
    if first.backup_id == second.backup_id and How.REPLAY not in (first.how, second.how):
        raise PreflightError(
            f"{begin} and {end} are both the snapshot set {first.backup_id}",
            hint="see `zsnapdb list` for others, or make one now",
        )
    counts = dict.fromkeys(ChangeKind, 0)
    with past(settings, instance, first) as old, past(settings, instance, second) as new:
        shape = planning.shape(_columns(old, schema, name, first), _columns(new, schema, name, second), table)
        sql = planning.select(shape, schema, name)
        changes = planning.merge(shape, old.stream(sql, batch=_BATCH)[1], new.stream(sql, batch=_BATCH)[1])
        emit(shape, _counted(changes, counts))
    return Difference(
        table, first, second, shape, counts[ChangeKind.ADDED], counts[ChangeKind.REMOVED], counts[ChangeKind.CHANGED]
    )


def _counted(changes: Iterator[Change], counts: dict[ChangeKind, int]) -> Iterator[Change]:
    for change in changes:
        counts[change.kind] += 1
        yield change


class _Counter:
    """Counts what passes through it."""

    def __init__(self) -> None:
        self.number = 0

    def through(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self.number += 1
            yield row


@contextlib.contextmanager
def past(settings: Settings, instance: Instance, moment: Moment) -> Iterator[Session]:
    """A session that can only read, on a clone of the moment that is gone after the block."""
    at = moment.asked if moment.how is How.REPLAY else None
    wish = CloneRequest(owner=OWNER, source=moment.backup_id, at=at, point=moment.point)
    with throwaway(settings, instance, wish) as clone:
        with clone.session() as session:
            password = _make_reader(session)
        with Session.open(Address(_READER, clone.process.socket), password, read_timeout=_LONGEST_SECONDS) as session:
            _read_only(session, clone.info.flavour)
            yield session


def _make_reader(session: Session) -> SecretStr:
    """Make an account that can read everything and nothing else: no FILE, no EXECUTE, no temporary tables."""
    password = SecretStr(secrets.token_urlsafe(18) + "-aA9")
    session.query(f"CREATE USER {_READER}@localhost IDENTIFIED BY %s", (password.get_secret_value(),))
    session.query(f"GRANT SELECT, SHOW VIEW ON *.* TO {_READER}@localhost")
    session.query("SET GLOBAL read_only = ON")
    return password


def _read_only(session: Session, flavour: Flavour) -> None:
    session.query("SET SESSION time_zone = '+00:00'")
    if flavour is Flavour.MARIADB:
        # A statement that nobody waits for any more ends by itself with its clone; the default of a site must not cut
        # it short.
        session.query("SET SESSION max_statement_time = 0")
    session.query("SET SESSION TRANSACTION READ ONLY")
    session.query("START TRANSACTION READ ONLY")


def _columns(session: Session, schema: str, name: str, moment: Moment) -> list[Column]:
    """Return the table's columns in their order. NotThere if the moment has no such table."""
    pads = _padding_collations(session)
    keys = {
        str(column): int(part)
        for column, part in session.query(
            "SELECT column_name, seq_in_index FROM information_schema.statistics WHERE table_schema = %s AND table_name"
            " = %s AND index_name = 'PRIMARY'",
            (schema, name),
        )
    }
    rows = session.query(
        "SELECT column_name, data_type, character_maximum_length, collation_name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (schema, name),
    )
    if not rows:
        raise NotThere(
            f"there is no table {schema}.{name} in {moment.backup_id}",
            hint="name it as schema.table, as it was called then",
        )
    return [
        Column(
            str(column),
            str(kind).lower(),
            None if length is None else int(length),
            keys.get(str(column), 0),
            collation is None or pads(str(collation)),
        )
        for column, kind, length, collation in rows
    ]


def _padding_collations(session: Session) -> Callable[[str], bool]:
    """Return which collations ignore trailing spaces: MySQL says so in a column, MariaDB in the name of those that do not (…_nopad_…)."""
    has = (
        "SELECT 1 FROM information_schema.columns WHERE table_schema = 'information_schema' AND table_name ="
        " 'COLLATIONS' AND column_name = 'PAD_ATTRIBUTE'"
    )
    if not session.query(has):
        return lambda name: "_nopad_" not in name
    found = {
        str(name): str(pad)
        for name, pad in session.query("SELECT collation_name, pad_attribute FROM information_schema.collations")
    }
    return lambda name: found.get(name, "PAD SPACE") == "PAD SPACE"
