"""Views of the branches of a clone: the list of them, a switch, a log of commits, the difference of two commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.printed import printed
from zsnapdb.report.clone.fields import CloneFields, clone_fields, port, state
from zsnapdb.report.clone.query import ChangeFields, change_fields, change_lines
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.view import View

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.branch_diff import BranchDifference, ComparedTable
    from zsnapdb.jobs.clone.branches import CloneBranches, SwitchedBranch


class BranchFields(TypedDict):
    """A branch. `head` is its newest commit (null: none yet), `created` and `message` are those of that commit."""

    name: str
    head: str | None
    created: str | None
    message: str | None
    current: bool


class BranchesDocument(TypedDict):
    """The branches of a clone, and the one that it is on. `made`: the commit that was made for it (null: none)."""

    clone: str
    current: str
    branches: list[BranchFields]
    made: str | None


class SwitchedDocument(TypedDict):
    """A clone on another branch than before. `committed`: the branch that was left got a new commit, `left_head`."""

    clone: CloneFields
    branch: str
    head: str | None
    left: str
    left_head: str | None
    committed: bool


class LoggedCommitFields(TypedDict):
    """A commit in the log of a branch; `branches` are those whose newest commit it is."""

    id: str
    parent: str | None
    created: str
    message: str
    branches: list[str]


class BranchLogDocument(TypedDict):
    """The commits that lead to a branch or a commit, newest first. `begins`: what the oldest of them followed."""

    clone: str
    of: str
    commits: list[LoggedCommitFields]
    begins: str | None


class TableDifferenceFields(TypedDict):
    """A table at two commits; a number of rows is null where the table is not.

    `by`: `key` (rows are told apart by primary key), `checksum` (they are not, as `reason` says), or `presence`.
    `added`, `removed` and `changed` are null unless it is `key`. `columns` are those of the values of `changes`.
    """

    table: str
    same: bool
    by: str
    reason: str | None
    rows_before: int | None
    rows_after: int | None
    added: int | None
    removed: int | None
    changed: int | None
    columns: list[str]
    changes: list[ChangeFields]


class BranchDifferenceDocument(TypedDict):
    """Two commits of a clone compared. `schema_difference` is that of all definitions, as diff(1) writes it.

    `left_out`: rows or definitions that differ are not shown, because they are too many.
    """

    clone: str
    before: str
    after: str
    same: bool
    schema_difference: str
    tables: list[TableDifferenceFields]
    left_out: bool


@dataclass(frozen=True)
class BranchesView(TabularView):
    """The branches of a clone."""

    seen: CloneBranches
    kind: ClassVar[str] = "clone-branches"

    def parts(self) -> Sequence[Part]:
        rows = [
            ("*" if one["current"] else "", one["name"], *(one[key] or "-" for key in ("head", "created", "message")))
            for one in self._branches()
        ]
        made = [f"commit {self.seen.made} of clone {self.seen.info.label} was made"] if self.seen.made else []
        return [*made, Table(("", "BRANCH", "COMMIT", "CREATED", "MESSAGE"), rows, "no branches")]

    def _branches(self) -> list[BranchFields]:
        seen, result = self.seen, list[BranchFields]()
        for name, head in sorted(seen.branches.heads.items()):
            commit = seen.commits.get(head)
            result.append(
                {
                    "name": name,
                    "head": head or None,
                    "created": commit.created if commit is not None else None,
                    "message": commit.message if commit is not None else None,
                    "current": name == seen.branches.current,
                }
            )
        return result

    def fields(self) -> BranchesDocument:
        return {
            "clone": self.seen.info.label,
            "current": self.seen.branches.current,
            "branches": self._branches(),
            "made": self.seen.made or None,
        }


@dataclass(frozen=True)
class SwitchedView(View):
    """A clone that was given another branch."""

    result: SwitchedBranch
    kind: ClassVar[str] = "clone-switched"

    def text(self) -> str:
        result = self.result
        info, known = result.info, result.branches
        lines = [f"clone {info.label} is on branch {known.current}: {state(info)}, {port(info)}"]
        if result.is_new_commit:
            lines.append(f"  what was written on branch {result.left} is commit {result.left_head}")
        elif result.left != known.current:
            lines.append(f"  nothing was written on branch {result.left} since {result.left_head}")
        return "\n".join(lines)

    def fields(self) -> SwitchedDocument:
        result = self.result
        return {
            "clone": clone_fields(result.info),
            "branch": result.branches.current,
            "head": result.branches.head or None,
            "left": result.left,
            "left_head": result.left_head or None,
            "committed": result.is_new_commit,
        }


@dataclass(frozen=True)
class BranchLogView(View):
    """The commits that lead to a branch or a commit."""

    seen: CloneBranches
    of: str
    line: Sequence[str]
    kind: ClassVar[str] = "clone-branch-log"

    def text(self) -> str:
        lines = []
        for one in self._commits():
            names = f" ({', '.join(one['branches'])})" if one["branches"] else ""
            lines.append(f"{one['id']}{names} {one['created']} {one['message']}".rstrip())
        begins = self._begins()
        return "\n".join([*lines, *([f"it begins at {printed(begins)}"] if begins else [])]) or "no commits"

    def _commits(self) -> list[LoggedCommitFields]:
        heads = self.seen.branches.heads
        return [
            {
                "id": one,
                "parent": self.seen.commits[one].parent or None,
                "created": self.seen.commits[one].created,
                "message": self.seen.commits[one].message,
                "branches": sorted(name for name, head in heads.items() if head == one),
            }
            for one in self.line
        ]

    def _begins(self) -> str | None:
        return (self.seen.commits[self.line[-1]].parent if self.line else self.seen.info.backup_id) or None

    def fields(self) -> BranchLogDocument:
        return {
            "clone": self.seen.info.label,
            "of": self.of,
            "commits": self._commits(),
            "begins": self._begins(),
        }


@dataclass(frozen=True)
class BranchDifferenceView(View):
    """Two commits of a clone compared."""

    result: BranchDifference
    kind: ClassVar[str] = "clone-branch-difference"

    def text(self) -> str:
        result = self.result
        lines = [*map(printed, result.schema.splitlines()), *([""] if result.schema else [])]
        others = [table for table in result.tables if not table.is_same]
        for table in others:
            lines += _lines(table)
        same = len(result.tables) - len(others)
        if result.is_same:
            lines.append("nothing differs")
        elif same:
            lines.append(f"{same} other tables have the same rows")
        lines.append(f"  from  {result.before.set.backup_id} {result.before.message}".rstrip())
        lines.append(f"  to    {result.after.set.backup_id} {result.after.message}".rstrip())
        return "\n".join(lines)

    def fields(self) -> BranchDifferenceDocument:
        result = self.result
        return {
            "clone": result.info.label,
            "before": result.before.set.backup_id,
            "after": result.after.set.backup_id,
            "same": result.is_same,
            "schema_difference": result.schema,
            "tables": [_fields(table) for table in result.tables],
            "left_out": not result.is_whole,
        }


def _lines(table: ComparedTable) -> list[str]:
    name = printed(str(table.name))
    if table.shape is not None:
        shown = [f"  {line}" for line in change_lines(table.shape, table.changes)]
        more = table.added + table.removed + table.changed - len(table.changes)
        rest = [f"  and {more} rows more"] if more else []
        return [
            f"{name}: {table.added} rows added, {table.removed} removed, {table.changed} changed",
            *shown,
            *rest,
        ]
    if table.before is None or table.after is None:
        is_new = table.before is None
        return [f"{name}: {'only after' if is_new else 'only before'}, {table.after if is_new else table.before} rows"]
    return [f"{name}: differs by number or checksum, {table.before} rows and {table.after} ({printed(table.reason)})"]


def _fields(table: ComparedTable) -> TableDifferenceFields:
    shape = table.shape
    is_there = table.before is not None and table.after is not None
    return {
        "table": str(table.name),
        "same": table.is_same,
        "by": "key" if shape is not None else "checksum" if is_there else "presence",
        "reason": table.reason or None,
        "rows_before": table.before,
        "rows_after": table.after,
        "added": table.added if shape is not None else None,
        "removed": table.removed if shape is not None else None,
        "changed": table.changed if shape is not None else None,
        "columns": [column.name for column in shape.common] if shape is not None else [],
        "changes": [change_fields(change) for change in table.changes],
    }
