"""Admission of one more clone, commit or running server. Only one request at a time is checked and started."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zsnapdb.base.errors import UsageError
from zsnapdb.base.patterns import is_same, printable
from zsnapdb.base.quantities import parse_duration
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.clone import space_limits
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.serve import helper_messages, project_limits
from zsnapdb.serve.clone_documents import OwnedCommit, PublicClone
from zsnapdb.serve.operations import Operations
from zsnapdb.serve.roles import VerbKind
from zsnapdb.verbs import requests as verbs

COUNTED_DEED = (
    verbs.CommitCloneVerb
    | verbs.CreateBranchVerb
    | verbs.DiffBranchesVerb
    | verbs.ResetCloneVerb
    | verbs.StartCloneVerb
    | verbs.SwitchBranchVerb
)
"""The verbs that may create a commit or start a server."""
_COMMITS = (VerbKind.CLONE_COMMIT, VerbKind.BRANCH_CREATE, VerbKind.BRANCH_SWITCH)
_STARTS = (VerbKind.CLONE_RESET, VerbKind.CLONE_START, VerbKind.BRANCH_SWITCH)
_SERVERS_OF_DIFFERENCE = 2


@dataclass
class Admission:
    """The current use of the limits. `seen` returns the clones of this host, and `commits` returns their commits.

    A caller holds the lock `alone` from the check until the operation has started. Simultaneous requests therefore
    cannot exceed the limits.
    """

    settings: Callable[[], Settings]
    operations: Operations
    seen: Callable[[], Sequence[PublicClone]]
    commits: Callable[[], Sequence[OwnedCommit]]
    alone: threading.Lock = field(init=False, default_factory=threading.Lock)

    def new_clone(self, subject: str) -> project_limits.AdmittedClone:
        """Return how many bytes one more clone of the subject may write.

        Raises RefusedRequest if a limit is reached.
        """
        settings = self.settings()
        answer = project_limits.admitted(
            project_limits.limits_of(subject, settings.serve),
            self._counted(),
            settings.clones.quota,
            space_limits.LEAST_QUOTA,
        )
        if isinstance(answer, project_limits.LimitRefusal):
            raise helper_messages.over_limit(answer)
        return answer

    def deed(self, verb: verbs.CloneAction, clone: PublicClone) -> None:
        """Check the limits of commits and running servers.

        If a limit is reached, raises RefusedRequest with that limit.

        The limits of the clone's owner apply, even if another subject sent the request.
        """
        if isinstance(verb, verbs.CommitCloneVerb | verbs.SwitchBranchVerb) or (
            isinstance(verb, verbs.CreateBranchVerb) and verb.wanted.start is None
        ):
            self._commit(clone)
        if isinstance(
            verb, verbs.DiffBranchesVerb | verbs.ResetCloneVerb | verbs.StartCloneVerb | verbs.SwitchBranchVerb
        ):
            self._servers(clone, is_compared=isinstance(verb, verbs.DiffBranchesVerb))

    def _servers(self, clone: PublicClone, *, is_compared: bool) -> None:
        """Check that the clone's server may run, or that two more servers may run to compare two of its states."""
        counted = self._counted()
        if is_compared:
            self._comparison(clone)
        now = sum(one.servers for one in counted if (one.name, one.owner) == (clone.name, clone.owner))
        others = _SERVERS_OF_DIFFERENCE * self._compared()[clone.id]
        wanted = now + _SERVERS_OF_DIFFERENCE if is_compared else 1 + others
        refused = project_limits.may_run(
            project_limits.limits_of(clone.owner, self.settings().serve), counted, clone.name, clone.owner, wanted
        )
        if refused is not None:
            raise helper_messages.over_limit(refused)

    def _comparison(self, clone: PublicClone) -> None:
        """Raise RefusedRequest if too many comparisons are running. Each may write as much as its two clones."""
        settings, compared = self.settings().serve, self._compared()
        owned = {one.id for one in self.seen() if is_same(one.owner, clone.owner)}
        mine = sum(times for name, times in compared.items() if name in owned)
        refused = project_limits.may_compare(clone.owner, mine, compared.total(), settings)
        if refused is not None:
            raise helper_messages.over_limit(refused)

    def _compared(self) -> Counter[str]:
        """Return the number of running comparisons per clone id."""
        return Counter(one.clone for one in self.operations.under_way(VerbKind.BRANCH_DIFF))

    def _commit(self, clone: PublicClone) -> None:
        # A commit that completes during this count may be counted twice, but is never missed.
        begun = [one for verb in _COMMITS for one in self.operations.under_way(verb)]
        owned = {one.id for one in self.seen() if is_same(one.owner, clone.owner)} if begun else set()
        used = sum(one.clone in owned for one in begun) + sum(is_same(one.owner, clone.owner) for one in self.commits())
        most = self.settings().serve.commits_per_subject
        if used >= most:
            raise helper_messages.over_commits(clone.owner, used, most)

    def lease(self, asked: str | None, owner: str) -> float:
        """Return the lease of a clone of this owner in seconds.

        Raises UsageError if the lease is too long or not positive.
        """
        settings = self.settings().serve
        longest = project_limits.longest_lease(owner, settings)
        seconds = parse_duration(asked) if asked is not None else min(settings.ttl, longest.seconds)
        refused = project_limits.objection_to_lease(printable(asked or ""), seconds, longest)
        if refused is not None:
            raise UsageError(refused.message, hint=refused.hint)
        return seconds

    def _counted(self) -> list[project_limits.CountedClone]:
        """Return every clone that exists or is being created. Operations are read first, so that no clone is missed."""
        found = dict[tuple[str, str], project_limits.CountedClone]()
        for making in self.operations.under_way(VerbKind.CLONE_CREATE):
            # If several requests use the same name, only one of them can create the clone. The request with the most
            # bytes counts here.
            key = (making.clone, owner_text(making.subject))
            most = max(making.most_bytes, found[key].most_bytes) if key in found else making.most_bytes
            found[key] = project_limits.CountedClone(*key, most, servers=1)
        being_started = {one.clone for verb in _STARTS for one in self.operations.under_way(verb)}
        compared = self._compared()
        for one in self.seen():
            begun = found.get((one.name, one.owner))
            most = max(one.most_bytes, begun.most_bytes) if begun is not None else one.most_bytes
            servers = int(one.runs or begun is not None or one.id in being_started)
            servers += _SERVERS_OF_DIFFERENCE * compared[one.id]
            found[one.name, one.owner] = project_limits.CountedClone(one.name, one.owner, most, servers)
        return list(found.values())
