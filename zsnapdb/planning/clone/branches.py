"""The branches of a clone. Each branch is a name for a commit, called its head. One branch is the current branch. Pure.

A head is a commit of the clone, so it exists as long as the clone exists. Only the clone's current branch can be
without a commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from zsnapdb.base.errors import ExistsError, PreflightError, UnknownNameError, UsageError
from zsnapdb.base.patterns import BACKUP_ID

FIRST = "main"
"""The name of the first branch of every clone."""
MOST = 64
"""The maximum number of branches of a clone.

This number of branches fits into a property (8,191 bytes, zfsprops(7)), even with the longest names.
"""
NOTHING = "-"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,59}")
"""The pattern of branch names. Commit ids match it too."""
_COMMIT = re.compile(BACKUP_ID)


def is_branch_name(text: str) -> bool:
    """Return whether a branch may have this name. It must match the pattern `NAME` and must not be a commit id."""
    return NAME.fullmatch(text) is not None and _COMMIT.fullmatch(text) is None


@dataclass(frozen=True)
class Branches:
    """The branches of a clone by name, and the clone's current branch.

    The field `heads` maps each branch to its head ("" if the branch has no commit).
    """

    current: str = FIRST
    heads: Mapping[str, str] = field(default_factory=lambda: {FIRST: ""})

    @property
    def head(self) -> str:
        """The newest commit of the clone's current branch; "" if the branch has no commit."""
        return self.heads[self.current]

    def encode(self) -> str:
        """Return the value of the property that records the branches."""
        return " ".join((self.current, *(f"{name}={head or NOTHING}" for name, head in sorted(self.heads.items()))))

    def with_head(self, commit: str) -> Branches:
        """Return the branches with `commit` as the new head of the clone's current branch."""
        return replace(self, heads={**self.heads, self.current: commit})

    def with_branch(self, name: str, head: str) -> Branches:
        """Return the branches with the new branch. Raises the errors of `refuse_new`."""
        refuse_new(self, name)
        return replace(self, heads={**self.heads, name: head})

    def without(self, name: str) -> Branches:
        """Return the branches without the branch `name`.

        Raises UnknownNameError if the branch does not exist, and PreflightError if it is the clone's current branch.
        """
        head_of(self, name)
        if name == self.current:
            raise PreflightError(f"the clone is on branch {name}", hint="switch to another branch first")
        return replace(self, heads={other: head for other, head in self.heads.items() if other != name})

    def on(self, name: str) -> Branches:
        """Return the branches with `name` as the current branch of the clone.

        Raises UnknownNameError if the branch does not exist.
        """
        head_of(self, name)
        return replace(self, current=name)


def decode(text: str) -> Branches:
    """Return the branches that a property records. Raises ValueError if `encode` cannot have written the text."""
    current, *pairs = text.split(" ")
    heads: dict[str, str] = {}
    for pair in pairs:
        name, equals, head = pair.partition("=")
        if not equals or not is_branch_name(name) or name in heads:
            raise ValueError("a branch is not of the form NAME=COMMIT")
        if head != NOTHING and _COMMIT.fullmatch(head) is None:
            raise ValueError(f"the head of {name} is not a commit")
        heads[name] = "" if head == NOTHING else head
    if current not in heads or len(heads) > MOST:
        raise ValueError("the current branch of the clone is not listed, or there are too many")
    return Branches(current, heads)


def current_of(text: str) -> str | None:
    """Return the current branch of a clone. The argument `text` is the record on the clone's anchor, or "".

    Return None if the record cannot be read.
    """
    try:
        return decode(text).current if text else FIRST
    except ValueError:
        return None


def refuse_new(branches: Branches, name: str) -> None:
    """Raise an error if the clone cannot get a branch with this name.

    The error is UsageError if the name is invalid, ExistsError if a branch already has this name, and PreflightError if
    the clone has too many branches.
    """
    if not is_branch_name(name):
        raise UsageError(
            f"invalid branch name {name!r}",
            hint="use at most 60 of: letters, digits, . _ - and /, with a letter or a digit first; not like a commit",
        )
    if name in branches.heads:
        raise ExistsError(f"the branch {name} exists", hint="choose another name, or switch to it")
    if len(branches.heads) >= MOST:
        raise PreflightError(f"the clone has {MOST} branches", hint="delete one: `zsnapdb clone branch delete`")


def head_of(branches: Branches, name: str) -> str:
    """Return the head of the branch.

    If the branch does not exist, raises UnknownNameError, which lists the existing branches.
    """
    if name not in branches.heads:
        raise UnknownNameError(
            f"there is no branch {name[:80]!r}", hint=f"the clone has {', '.join(sorted(branches.heads))}", about=()
        )
    return branches.heads[name]


class CommitWithParent(Protocol):
    """A commit with its parent, which is the id of the commit or snapshot set before it ("" if unknown)."""

    @property
    def parent(self) -> str: ...


def line_of(head: str, commits: Mapping[str, CommitWithParent]) -> Sequence[str]:
    """Return the commits of the clone that lead to a head, newest first.

    Recorded parents may be wrong and form a loop, so the result contains each commit only once.
    """
    line: list[str] = []
    while head in commits and head not in line:
        line.append(head)
        head = commits[head].parent
    return line
