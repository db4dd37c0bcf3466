"""Commands for the branches of a clone: list, create, delete and switch branches, and compare commits."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from zsnapdb.base.errors import PreflightError, UnknownNameError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, undone_on_error
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import cached_sets, data_replacement, kept_ports, reset_baseline, volumes
from zsnapdb.jobs.clone.catalogue import CloneVerb, Intention, locked_clone, of_dataset, ready, verb
from zsnapdb.jobs.clone.clone_info import BRANCHES_PROPERTY, CloneInfo
from zsnapdb.jobs.clone.commits import commit_locked, end_of_log, newest_commit, read_branches
from zsnapdb.jobs.clone.create import OWNER, ephemeral_clone
from zsnapdb.jobs.clone.lifecycle import server_of, server_settings, start_locked
from zsnapdb.jobs.clone.query import reading, row_changes
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.reset_baseline import LogEnd
from zsnapdb.jobs.clone.row_reset import hides_changes
from zsnapdb.jobs.clone.sources import CloneSource, Commit, commits
from zsnapdb.jobs.clone.volumes import revert_interrupted_change
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.schema import tables
from zsnapdb.mysql.schema.definitions import all_definitions_of
from zsnapdb.mysql.schema.schema_catalogue import stored_tables
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone import branches as planning
from zsnapdb.planning.clone import diff
from zsnapdb.planning.clone.branches import Branches
from zsnapdb.planning.clone.diff import Change, DifferenceKind, RowCount, Shape, ShownDifference, schema_difference
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.planning.clone.space_limits import COMPARED
from zsnapdb.planning.sql_quoting import TableName
from zsnapdb.zfs import datasets


@dataclass(frozen=True)
class CloneBranches:
    """The branches of a clone, and its commits by id.

    `made` is the commit that was created for a new branch; None if no commit was needed.
    """

    info: CloneInfo
    branches: Branches
    commits: Mapping[str, Commit]
    made: str = ""


@dataclass(frozen=True)
class SwitchedBranch:
    """A clone after a switch to another branch.

    It also contains the old branch, its newest commit, and whether the switch created that commit.
    """

    info: CloneInfo
    branches: Branches
    left: str
    left_head: str
    is_new_commit: bool


def listing(settings: Settings, host: Host, name: str) -> CloneBranches:
    """Return the branches of the clone."""
    return _read_branches(ready(settings, host, name))


def _read_branches(info: CloneInfo) -> CloneBranches:
    return CloneBranches(info, read_branches(info), {one.set.backup_id: one for one in commits(info.top)})


def resolve(seen: CloneBranches, text: str) -> Commit:
    """Return the commit for the text, which is a branch name or a commit id.

    Raises:
        PreflightError: the branch has no commit yet.
        UnknownNameError: the clone has no such branch or commit.
    """
    head = seen.branches.heads.get(text, text)
    if head in seen.commits:
        return seen.commits[head]
    if text in seen.branches.heads and not head:
        raise PreflightError(
            f"branch {text} of clone {seen.info.label} has no commit yet",
            hint=f"run `zsnapdb clone commit {seen.info.label}`",
            about=(seen.info.owner,),
        )
    known = ", ".join(sorted(seen.branches.heads))
    raise UnknownNameError(
        f"clone {seen.info.label} has no branch and no commit {text[:80]!r}",
        hint=f"its branches are {known}; `zsnapdb clone show {seen.info.label}` lists its commits",
        about=(seen.info.owner,),
    )


def log(seen: CloneBranches, state: str | None = None) -> Sequence[str]:
    """Return the commits that lead to a branch or commit, newest first.

    If `state` is None, the clone's current branch is used.
    """
    head = resolve(seen, state).set.backup_id if state is not None else seen.branches.head
    return planning.line_of(head, seen.commits)


def create(
    settings: Settings, host: Host, name: str, branch: str, start: str | None = None
) -> CloneVerb[Intention, CloneBranches]:
    """Create a branch of the clone. It begins at the branch or commit `start`.

    Without `start`, the present state of the clone is committed first, and the branch begins at that commit. The clone
    stays on its current branch. Raises the errors of `planning.refuse_new`, `resolve` and `commit`.
    """

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], CloneBranches]]:
        seen = _read_branches(_usable(info))
        planning.refuse_new(seen.branches, branch)
        known, head = seen.branches, ""
        if start is not None:
            head = resolve(seen, start).set.backup_id
        elif _is_unwritten(settings, info, _end_of_head(host, info, known)):
            head = known.head

        def begin() -> CloneBranches:
            made = "" if head else commit_locked(host, info, f"branch {branch} begins").set.backup_id
            _record(info, (known.with_head(made) if made else known).with_branch(branch, head or made))
            return replace(_read_branches(of_dataset(settings, host, info.name)), made=made)

        if start is not None:
            return Intention(info, (f"let branch {branch} begin at {head}",)), begin
        commit = () if head else ("commit the clone as it is",)
        return Intention(info, (*commit, f"let branch {branch} begin at that commit")), begin

    return verb(settings, host, name, decide)


def delete(settings: Settings, host: Host, name: str, branch: str) -> CloneVerb[Intention, CloneBranches]:
    """Delete a branch of the clone; its commits stay.

    Raises:
        PreflightError: the clone is on this branch.
    """

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], CloneBranches]]:
        left = read_branches(info).without(branch)

        def forget() -> CloneBranches:
            _record(info, left)
            return _read_branches(of_dataset(settings, host, info.name))

        return Intention(info, (f"forget branch {branch}; its commits stay",)), forget

    return verb(settings, host, name, decide, needs_lease=False)


def _record(info: CloneInfo, known: Branches) -> None:
    datasets.set_properties(info.top, {BRANCHES_PROPERTY: known.encode()})


def _usable(info: CloneInfo) -> CloneInfo:
    """Return the clone if branches can be used on it.

    Raises:
        PreflightError: the clone belongs to a set of clones, or it was never started and its data is not a commit.
    """
    if info.set_name:
        raise PreflightError(
            f"clone {info.label} is one of the set {info.set_name}",
            hint="use a clone that is not part of a set",
            about=(info.owner,),
        )
    # After an interrupted reset, the server was not started on the new data either. In that case the new data is not
    # the head of the branch.
    if info.phase is CopyPhase.NEW and read_branches(info).head != info.backup_id:
        raise PreflightError(
            f"the server of clone {info.label} was never started",
            hint=f"run `zsnapdb clone start {info.label}`",
            about=(info.owner,),
        )
    return info


def switch(
    settings: Settings, host: Host, name: str, branch: str, events: Events
) -> CloneVerb[Intention, SwitchedBranch]:
    """Replace the clone's data with the newest commit of the branch. The port, credentials and lease stay the same.

    Changes since the newest commit of the old branch are committed first, so that a switch back restores them.
    Afterwards the clone's server is running. An interrupted switch leaves the clone on the old branch with the old
    data, or on the new branch with the new data. Repeating the command continues the switch.
    """

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], SwitchedBranch]]:
        seen = _read_branches(_usable(info))
        known = seen.branches
        planning.head_of(known, branch)
        if branch == known.current:
            steps = ("start its server",) if info.pid is None else ()
            return Intention(info, steps), partial(_stay, settings, host, info, known, events)
        target = resolve(seen, branch)
        end = _end_of_head(host, info, known)
        is_kept = _is_unwritten(settings, info, end)
        if is_kept and known.head == target.set.backup_id:
            step = f"the data stays: both branches are at {target.set.backup_id}"
            return Intention(info, (step,)), partial(_rename, settings, host, info, known, branch)
        patience = server_settings(settings, info).start_timeout
        data_replacement.quota_beside(settings, info, is_committed=not is_kept)
        source = CloneSource(SourceKind.COMMIT, target.set, target.origin)
        cached_sets.begun_after(settings, host, info, source)

        def replace_data() -> SwitchedBranch:
            info.process.stop(timeout=patience)
            stopped, now, is_new = replace(info, pid=None), known, False
            with undone_on_error(lambda: _start_again(settings, host, info)):
                # A user may have written data after the clone was observed and before the server was stopped.
                if not is_kept or not _ended_there(settings, stopped, end):
                    made = commit_locked(host, stopped, f"branch {known.current}, when it was left")
                    now, is_new = known.with_head(made.set.backup_id), True
                reset_baseline.forget(host, info.name)
                put = data_replacement.put_data(settings, host, stopped, source, now.on(branch), events)
            return SwitchedBranch(put, now.on(branch), known.current, now.head, is_new)

        change = f"replace its data by that of {target.set.backup_id}"
        steps = (
            *(("shut down its server",) if info.pid is not None else ()),
            *(() if is_kept else (f"commit what branch {known.current} lacks",)),
            f"{change}, and start its server on port {info.client_port} again",
        )
        return Intention(info, steps), replace_data

    return replace(verb(settings, host, name, decide), held=lambda: _locked_clone(settings, host, name, events))


@contextlib.contextmanager
def _locked_clone(settings: Settings, host: Host, name: str, events: Events) -> Iterator[CloneInfo]:
    """Lock the clone, revert an interrupted data change if its new data is not current yet, and yield the clone."""
    with locked_clone(settings, host, name) as info:
        if info.phase is CopyPhase.CHANGING:
            volumes.warn_of_kept(revert_interrupted_change(info), info.name, events)
            info = of_dataset(settings, host, info.name)
        yield info


def _stay(settings: Settings, host: Host, info: CloneInfo, known: Branches, events: Events) -> SwitchedBranch:
    if info.pid is None:
        # A switch to or from this branch may have been interrupted.
        start_locked(settings, host, info)
        volumes.warn_of_kept(revert_interrupted_change(info), info.name, events)
    now = kept_ports.open_to(settings, of_dataset(settings, host, info.name), events)
    return SwitchedBranch(now, known, known.current, known.head, is_new_commit=False)


def _rename(settings: Settings, host: Host, info: CloneInfo, known: Branches, branch: str) -> SwitchedBranch:
    now = known.on(branch)
    _record(info, now)
    return SwitchedBranch(of_dataset(settings, host, info.name), now, known.current, known.head, is_new_commit=False)


def _start_again(settings: Settings, host: Host, before: CloneInfo) -> None:
    info = of_dataset(settings, host, before.name)
    if before.pid is not None and info.pid is None and info.revision == before.revision:
        start_locked(settings, host, info)


def _end_of_head(host: Host, info: CloneInfo, known: Branches) -> LogEnd | None:
    """Return the end of the running server's binlog at the time when the data equalled the head of the branch.

    Return None if that end is unknown. A reset that undoes rows writes nothing to the binlog, but records where the
    binlog ends. If the newest commit recorded the same end, the reset may have happened after the commit, so the result
    is None.
    """
    state = reset_baseline.read(host, info)
    if state is None:
        return None
    noted, newest = reset_baseline.recorded_binlog_end(state), newest_commit(info)
    if newest is None:
        return noted if known.head == info.backup_id else None
    end = LogEnd.parse(newest.log_end or "")
    is_reset = end is None or noted is None or (end.file, end.offset) == (noted.file, noted.offset)
    return None if is_reset else end


def _is_unwritten(settings: Settings, info: CloneInfo, end: LogEnd | None) -> bool:
    """Return whether the server certainly wrote no data after the binlog end `end`; True if it was never started."""
    if info.phase is CopyPhase.NEW:
        return True
    return end is not None and hides_changes(settings, info) is None and end_of_log(info) == end


def _ended_there(settings: Settings, info: CloneInfo, end: LogEnd | None) -> bool:
    """Return whether the stopped server wrote nothing after `end`. `end` is None if the server was never started."""
    if end is None:
        return True
    with contextlib.suppress(ZsnapdbError, OSError):
        return reset_baseline.is_end_of_stopped(server_of(settings, info).copy, end)
    return False


_LONG_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class ComparedTable:
    """A table in two states: the row counts and the differences. A row count is None if the state lacks the table.

    `added`, `removed` and `changed` count rows by primary key. `changes` contains the first changed rows, and `shape`
    describes their columns. If rows cannot be compared by key, `reason` says why, and `is_same` says whether the number
    and the checksum of the rows are equal.
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
        """The kind of comparison: `key`, `checksum`, or `presence` if the table exists in only one state."""
        if self.shape is not None:
            return "key"
        return "checksum" if self.before is not None and self.after is not None else "presence"

    @property
    def rows(self) -> ComparedTable | None:
        """The table itself if its rows were compared by primary key; else None."""
        return self if self.shape is not None else None


@dataclass(frozen=True)
class BranchDifference:
    """The differences between two commits: a unified diff of the definitions, and the changed rows of every table.

    `is_whole` is set if the result contains all differences.
    """

    info: CloneInfo
    before: Commit
    after: Commit
    schema: str = ""
    tables: tuple[ComparedTable, ...] = ()
    is_whole: bool = True

    @property
    def is_same(self) -> bool:
        return self.is_whole and not self.schema and all(table.is_same for table in self.tables)


@dataclass(frozen=True)
class _Side:
    """An ephemeral clone of a commit: its definitions, its tables, and a read-only session."""

    definitions: dict[str, str]
    names: frozenset[TableName]
    session: Session


def compare(
    settings: Settings, host: Host, name: str, first: str, second: str, most: ShownDifference, events: Events
) -> BranchDifference:
    """Compare two branches or commits of the clone. The result contains at most `most` differences.

    Rows are matched by primary key. A table without a primary key, or with different keys in the two states, is
    compared by the number and checksum of its rows. Sequences are compared only by their definitions. The memory use
    does not depend on the size of the tables. Both ephemeral clones are destroyed afterwards. Raises the errors of
    `branches.resolve` and `create`.
    """
    seen = listing(settings, host, name)
    before, after = resolve(seen, first), resolve(seen, second)
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
        shape = diff.shape(before, after, str(name))
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
