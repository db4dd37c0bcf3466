"""Comparison of two commits of a clone: definitions and the rows of every table.

Each commit is cloned to an ephemeral clone for the comparison.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import branches
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.create import OWNER, ephemeral_clone
from zsnapdb.jobs.clone.query import reading, row_changes
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import Commit
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.schema import tables
from zsnapdb.mysql.schema.definitions import all_definitions_of
from zsnapdb.mysql.schema.schema_catalogue import stored_tables
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone import diff as planning
from zsnapdb.planning.clone.diff import Change, DifferenceKind, RowCount, Shape, ShownDifference, schema_difference
from zsnapdb.planning.clone.space_limits import COMPARED
from zsnapdb.planning.sql_quoting import TableName

_LONG_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class ComparedTable:
    """A table in two states: its numbers of rows (None: the table does not exist) and the differences.

    `added`, `removed` and `changed` count rows by primary key. `changes` holds the first changed rows, and `shape`
    their columns. If rows have no common key, `reason` says why, and `is_same` compares the number and checksum of the
    rows.
    """

    name: TableName
    before: int | None
    after: int | None
    is_same: bool
    added: int = 0
    removed: int = 0
    changed: int = 0
    changes: tuple[Change, ...] = ()
    shape: Shape | None = None
    reason: str = ""

    @property
    def compared_by(self) -> str:
        """The kind of comparison: `key`, `checksum`, or `presence` if only one state has the table."""
        if self.shape is not None:
            return "key"
        return "checksum" if self.before is not None and self.after is not None else "presence"

    @property
    def rows(self) -> ComparedTable | None:
        """The table itself if its rows were compared by key, else None."""
        return self if self.shape is not None else None


@dataclass(frozen=True)
class BranchDifference:
    """The differences of two commits of a clone: all definitions in the format of diff(1), and every table.

    `is_whole`: no difference was cut off.
    """

    info: CloneInfo
    before: Commit
    after: Commit
    schema: str = ""
    tables: tuple[ComparedTable, ...] = ()
    is_whole: bool = True

    @property
    def is_same(self) -> bool:
        """Whether the commits are equal."""
        return self.is_whole and not self.schema and all(table.is_same for table in self.tables)


@dataclass(frozen=True)
class _Side:
    """A commit on its ephemeral clone: its definitions, its tables, and a session that only reads."""

    definitions: dict[str, str]
    names: frozenset[TableName]
    session: Session


def compare(
    settings: Settings, host: Host, name: str, first: str, second: str, most: ShownDifference, events: Events
) -> BranchDifference:
    """Compare two branches or commits of the clone, and keep at most as many differences as `most` allows.

    Rows are matched by primary key. A table without a primary key, or with different keys in the two states, is
    compared by the number and checksum of its rows. Sequences are compared by their definitions. Memory use does not
    grow with the tables. Both ephemeral clones are destroyed afterwards. The errors are those of `branches.resolve` and
    of `create`.
    """
    seen = branches.listing(settings, host, name)
    before, after = branches.resolve(seen, first), branches.resolve(seen, second)
    if before.set.backup_id == after.set.backup_id:
        return BranchDifference(seen.info, before, after)
    instance = Instance.of(settings, seen.info.instance, events).on_host(host)
    with _side(settings, instance, before) as old, _side(settings, instance, after) as new:
        difference = most.fitting_lines(schema_difference(old.definitions, new.definitions))
        compared = [_table(name, old, new, most) for name in sorted(old.names | new.names, key=str)]
        return BranchDifference(seen.info, before, after, difference, tuple(compared), not most.is_cut)


@contextlib.contextmanager
def _side(settings: Settings, instance: Instance, commit: Commit) -> Iterator[_Side]:
    request = CloneRequest(owner=OWNER, source=commit.set.backup_id, quota=COMPARED)
    with ephemeral_clone(settings, instance, request) as clone:
        with clone.session(read_timeout=_LONG_SECONDS) as session:
            definitions = all_definitions_of(session)
            names = frozenset(
                TableName(table.schema, table.name)
                for table in stored_tables(session)
                if table.schema not in SYSTEM_SCHEMAS and not table.is_sequence
            )
        with reading(clone) as session:
            yield _Side(definitions, names, session)


def _table(name: TableName, old: _Side, new: _Side, most: ShownDifference) -> ComparedTable:
    if name not in old.names or name not in new.names:
        return ComparedTable(name, _count(name, old), _count(name, new), is_same=False)
    try:
        before, after = (tables.columns(side.session, name.schema, str(name.table)) for side in (old, new))
        shape = planning.shape(before, after, str(name))
    except PreflightError as error:
        return _by_checksum(name, old, new, error.message)
    counts, seen = dict.fromkeys(DifferenceKind, 0), (RowCount(), RowCount())
    changes = row_changes(name, shape, (old.session, new.session), counts, seen)
    first = most.fitting_rows(changes)
    # The remaining changes are counted, but not kept.
    deque(changes, maxlen=0)
    most.is_cut = most.is_cut or sum(counts.values()) > len(first)
    return ComparedTable(
        name,
        seen[0].number,
        seen[1].number,
        is_same=not any(counts.values()) and not shape.only_before and not shape.only_after,
        added=counts[DifferenceKind.ADDED],
        removed=counts[DifferenceKind.REMOVED],
        changed=counts[DifferenceKind.CHANGED],
        changes=first,
        shape=shape,
    )


def _count(name: TableName, side: _Side) -> int | None:
    return tables.count(side.session, name.schema, str(name.table)) if name in side.names else None


def _by_checksum(name: TableName, old: _Side, new: _Side, reason: str) -> ComparedTable:
    counts = [_count(name, side) for side in (old, new)]
    sums = [tables.checksum(side.session, name.schema, str(name.table)) for side in (old, new)]
    is_same = counts[0] == counts[1] and sums[0] is not None and sums[0] == sums[1]
    return ComparedTable(name, counts[0], counts[1], is_same, reason=reason)
