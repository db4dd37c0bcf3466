"""Views of a clone's branches: the list, a switch, a log of commits, and the difference between two commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.base.untrusted_text import printed
from zsnapdb.documents import comparison as documents
from zsnapdb.report.clone.list import port, state
from zsnapdb.report.clone.query import change_lines
from zsnapdb.report.view import Part, Table, TabularView, View

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.branches import BranchDifference, CloneBranches, ComparedTable, SwitchedBranch


class BranchesView(TabularView, kind="clone-branches", document=documents.BranchesDocument):
    """The branches of a clone."""

    seen: CloneBranches

    def parts(self) -> Sequence[Part]:
        rows = [
            ("*" if one.current else "", one.name, one.head or "-", one.created or "-", one.message or "-")
            for one in self.branches
        ]
        made = [f"commit {self.seen.made} of clone {self.seen.info.label} was made"] if self.seen.made else []
        return [*made, Table(("", "BRANCH", "COMMIT", "CREATED", "MESSAGE"), rows, "no branches")]

    @property
    def branches(self) -> Sequence[documents.BranchFields]:
        seen, result = self.seen, list[documents.BranchFields]()
        for name, head in sorted(seen.branches.heads.items()):
            commit = seen.commits.get(head)
            result.append(
                documents.BranchFields(
                    name=name,
                    head=head or None,
                    created=commit.created if commit is not None else None,
                    message=commit.message if commit is not None else None,
                    current=name == seen.branches.current,
                )
            )
        return result


class SwitchedView(View, kind="clone-switched", document=documents.SwitchedDocument, read_from="result"):
    """A clone that was switched to another branch."""

    result: SwitchedBranch

    def text(self) -> str:
        result = self.result
        info, known = result.info, result.branches
        lines = [f"clone {info.label} is on branch {known.current}: {state(info)}, {port(info)}"]
        if result.is_new_commit:
            lines.append(f"  what was written on branch {result.left} is commit {result.left_head}")
        elif result.left != known.current:
            lines.append(f"  nothing was written on branch {result.left} since {result.left_head}")
        return "\n".join(lines)


class BranchLogView(View, kind="clone-branch-log", document=documents.BranchLogDocument):
    """The commits that lead to the head of a branch or to a commit."""

    seen: CloneBranches
    of: str
    line: Sequence[str]

    def text(self) -> str:
        lines = []
        for one in self.commits:
            names = f" ({', '.join(one.branches)})" if one.branches else ""
            lines.append(f"{one.id}{names} {one.created} {one.message}".rstrip())
        begins = self.begins
        return "\n".join([*lines, *([f"it begins at {printed(begins)}"] if begins else [])]) or "no commits"

    @property
    def commits(self) -> Sequence[documents.LoggedCommitFields]:
        heads = self.seen.branches.heads
        return [
            documents.LoggedCommitFields(
                id=one,
                parent=self.seen.commits[one].parent or None,
                created=self.seen.commits[one].created,
                message=self.seen.commits[one].message,
                branches=tuple(sorted(name for name, head in heads.items() if head == one)),
            )
            for one in self.line
        ]

    @property
    def begins(self) -> str | None:
        """The parent of the oldest commit (None if unknown)."""
        return (self.seen.commits[self.line[-1]].parent if self.line else self.seen.info.backup_id) or None


class BranchDifferenceView(
    View, kind="clone-branch-difference", document=documents.BranchDifferenceDocument, read_from="result"
):
    """The comparison of two commits of a clone."""

    result: BranchDifference

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


def _lines(table: ComparedTable) -> list[str]:
    name = printed(str(table.name))
    if table.shape is not None:
        shown = [f"  {line}" for line in change_lines(table.shape, table.changes)]
        more = table.added + table.removed + table.changed - len(table.changes)
        rest = [f"  and {more} rows more"] if more else []
        return [f"{name}: {table.added} rows added, {table.removed} removed, {table.changed} changed", *shown, *rest]
    if table.before is None or table.after is None:
        where, rows = ("only after", table.after) if table.before is None else ("only before", table.before)
        return [f"{name}: {where}, {rows or 0} rows"]
    return [f"{name}: differs by number or checksum, {table.before} rows and {table.after} ({printed(table.reason)})"]
