"""The page of the branches of a clone: its commits, a new branch, and a switch to another one."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.serve import page_rows
from zsnapdb.serve.clone_pages import clone_name
from zsnapdb.serve.helper_messages import FailureAnswer
from zsnapdb.serve.page_requests import PageRequest
from zsnapdb.serve.page_rows import Document, Facts, read
from zsnapdb.serve.page_views import PageAnswer, Visits, document_of
from zsnapdb.verbs import requests as verbs


class BranchRow(Facts):
    """A branch with its newest commit (None: it has none yet)."""

    name: str
    head: str | None = None
    created: str | None = None
    message: str | None = None
    current: bool = False


class CommitRow(Facts):
    """A commit of a clone."""

    id: str
    created: str
    message: str = ""


class _Branches(Facts):
    current: str
    branches: tuple[BranchRow, ...]


class _Commits(Facts):
    commits: tuple[CommitRow, ...]


@dataclass(frozen=True)
class BranchCard:
    """The branches of a clone, and the commits that lead to the chosen one, newest first."""

    current: str
    branches: tuple[BranchRow, ...]
    commits: tuple[CommitRow, ...]


def branches_of(branches: Document, log: Document | None) -> BranchCard:
    """Return the branches in an answer, with the commits of another one. None: the branch has no commits."""
    told = read(_Branches, branches)
    commits = read(_Commits, log).commits if log is not None else ()
    return BranchCard(told.current, told.branches, commits)


@dataclass(frozen=True)
class BranchPages:
    """The pages of branches."""

    visits: Visits

    def branches(self, request: PageRequest) -> PageAnswer:
        """Show the branches of a clone, and the commits of the one that it is on. Two commands read them."""
        visit = self.visits.visit(request)
        document = self.visits.ask(visit.session, verbs.GetCloneVerb(name=clone_name(request)))
        clone = page_rows.clone_of(document, visit.person, visit.now)
        told = self.visits.ask(visit.session, verbs.ListBranchesVerb(name=clone.facts.id))
        ending = self.visits.ending(visit.session, verbs.LogBranchVerb(name=clone.facts.id))
        log = None if isinstance(ending, FailureAnswer) else document_of(ending)
        return visit.shows("branches.html", clone=clone, card=branches_of(told, log), asked=request.query)
