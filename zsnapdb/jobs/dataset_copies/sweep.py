"""The sweep over the copies of one kind.

The sweep holds a copy's lock while it decides whether to remove the copy. If an error occurs with one copy, the sweep
continues with the next copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Generic, TypeVar

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.jobs.base.run_locks import if_free
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies, NamedCopy
from zsnapdb.planning.clone.lease import JudgedLease, LeaseVerdict

C = TypeVar("C", bound=NamedCopy)


class ExtraRemoval(StrEnum):
    """Objects that a caller allows a removal to destroy with a copy: the copy's snapshots from other programs."""

    FOREIGN_SNAPSHOTS = "foreign-snapshots"


@dataclass(frozen=True)
class Leak:
    """A leftover of a killed run: its kind, its dataset, and its instance."""

    what: str
    where: str
    instance: str
    hint: str = "run `zsnapdb reap` to remove it"


@dataclass(frozen=True)
class ReapOutcome:
    """The decision of a sweep about a copy: keep or reap, the reason, and the error if its removal failed.

    `instance` is the instance of the copy, or "" if it is unknown.
    """

    what: str
    name: str
    verdict: LeaseVerdict
    reason: str
    error: ZsnapdbError | None = None
    instance: str = ""

    @property
    def goes(self) -> bool:
        """Whether the sweep removed the copy, or the planned sweep would remove it."""
        return self.verdict is LeaseVerdict.REAP


@dataclass(frozen=True)
class CopyKind(Generic[C]):
    """The copies of one kind, and the functions that a sweep calls. `what` is the word for such a copy in messages.

    `known` lists the copies, and `lock` returns the name of a copy's lock. `leaks` returns the leftovers of killed runs
    in a copy that no process has locked. `judge` decides from a copy's present state whether to keep the copy, and
    `instance` returns the copy's instance. `again` reads the present state of one copy. If `again` is None, all copies
    are read instead.
    """

    what: str
    known: Callable[[], KnownCopies[C]]
    lock: Callable[[C], str]
    leaks: Callable[[C], Sequence[Leak]]
    judge: Callable[[C], JudgedLease]
    remove: Callable[[C], object]
    instance: Callable[[C], str] = lambda _: ""
    again: Callable[[C], C | None] | None = None

    def as_it_is_now(self, copy: C) -> C | None:
        """Return the present state of the copy; None if it no longer exists or can no longer be read."""
        if self.again is not None:
            return self.again(copy)
        return next((one for one in self.known().copies if one.name == copy.name), None)


def leaks(kind: CopyKind[C]) -> Iterator[Leak]:
    """Yield the leftovers of killed runs, and the unreadable copies.

    If another process holds the lock of a copy, that copy is not a leftover.
    """
    known = kind.known()
    for item in known.unreadable:
        what = f"{item.what} whose properties cannot be read ({item.reason})"
        yield Leak(what, item.anchor, item.instance, item.hint)
    for copy in known.copies:
        with if_free(kind.lock(copy)) as is_free:
            if is_free:
                yield from kind.leaks(copy)


def sweep(kind: CopyKind[C], *, act: bool, limit: int | None = None) -> Iterator[ReapOutcome]:
    """Check every copy of the kind, and remove expired copies and leftovers.

    If `act` is false, only report what would be removed. Each copy is read again under its lock before the decision. A
    copy stays if it is unreadable or if another process is using it. At most `limit` expired copies are removed; None
    means no limit. If an error occurs with a copy, the copy's outcome contains the error, and the sweep continues.
    """
    taken, what, seen = 0, kind.what, kind.known()
    for item in seen.unreadable:
        reason = f"its properties cannot be read ({item.reason}): {item.hint}"
        yield ReapOutcome(what, item.name, LeaseVerdict.KEEP, reason)
    for before in seen.copies:
        name = before.name
        with if_free(kind.lock(before)) as is_free:
            if not is_free:
                yield ReapOutcome(what, name, LeaseVerdict.KEEP, "another process is working on it")
                continue
            copy = kind.as_it_is_now(before)
            if copy is None:
                continue
            judged = _judge(kind, copy)
            goes = judged.verdict is LeaseVerdict.REAP
            if goes and not judged.is_leak and limit is not None and taken >= limit:
                reason = f"{judged.reason}; the next sweep removes it: clones.reap_limit is {limit}"
                judged = JudgedLease(LeaseVerdict.KEEP, reason)
            outcome = ReapOutcome(what, name, judged.verdict, judged.reason, judged.error, kind.instance(copy))
            done = carried_out(outcome, partial(kind.remove, copy), act=act)
            taken += done.verdict is LeaseVerdict.REAP
            yield done


def _judge(kind: CopyKind[C], copy: C) -> JudgedLease:
    try:
        return kind.judge(copy)
    except ZsnapdbError as error:
        return JudgedLease(LeaseVerdict.KEEP, "it could not be judged", error)


def carried_out(outcome: ReapOutcome, remove: Callable[[], object], *, act: bool) -> ReapOutcome:
    """Remove the copy if its verdict is REAP and `act` is true.

    Return the outcome, with the error if the removal failed.
    """
    if not act or outcome.verdict is not LeaseVerdict.REAP:
        return outcome
    try:
        remove()
    except ZsnapdbError as error:
        return replace(outcome, verdict=LeaseVerdict.KEEP, error=error)
    return outcome
