"""A sweep of copies: one after the other, each under its lock, whatever goes wrong with the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import CommandError
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies, UnreadableCopy
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.dataset_copies.sweep import CopyKind, Leak, ReapOutcome, leaks, sweep
from zsnapdb.planning.clone.lease import JudgedLease, LeaseVerdict

KEEP, REAP = LeaseVerdict.KEEP, LeaseVerdict.REAP
EXPIRED, LEFT = JudgedLease(REAP, "expired"), JudgedLease.leak("half made")


@dataclass(frozen=True)
class Paper:
    """A copy that has a name."""

    name: str
    phase: CopyPhase = CopyPhase.READY


TORN = UnreadableCopy("copy", "torn", "tank/torn", "main", "phase is 'redy'")


@dataclass
class Copies:
    """Copies in memory. `judged` None: it cannot be judged. Those in `stuck` cannot be removed."""

    judged: dict[str, JudgedLease | None]
    stuck: frozenset[str] = frozenset()
    removed: list[str] = field(default_factory=list)
    unreadable: tuple[UnreadableCopy, ...] = ()

    def kind(self) -> CopyKind[Paper]:
        return CopyKind("copy", self._known, lambda copy: f"copy-{copy.name}", self._leaks, self._judge, self._remove)

    def _known(self) -> KnownCopies[Paper]:
        return KnownCopies("copy", [Paper(name) for name in self.judged], self.unreadable)

    def _leaks(self, copy: Paper) -> list[Leak]:
        return [Leak("copy", copy.name, "main")] if self.judged[copy.name] == LEFT else []

    def _judge(self, copy: Paper) -> JudgedLease:
        verdict = self.judged[copy.name]
        if verdict is None:
            raise CommandError(f"{copy.name} cannot be read", hint="")
        return verdict

    def _remove(self, copy: Paper) -> None:
        if copy.name in self.stuck:
            raise CommandError(f"{copy.name} is busy", hint="")
        self.removed.append(copy.name)
        del self.judged[copy.name]


NAMES = st.sampled_from("abcdefgh")
VERDICTS = st.sampled_from([None, JudgedLease(KEEP, "in use"), EXPIRED, LEFT])


@given(st.dictionaries(NAMES, VERDICTS), st.frozensets(NAMES), st.none() | st.integers(0, 4))
def test_what_was_left_behind_goes_and_of_what_expired_no_more_than_the_limit(
    judged: dict[str, JudgedLease | None], stuck: frozenset[str], limit: int | None
) -> None:
    copies = Copies(dict(judged), stuck)
    outcomes = list(sweep(copies.kind(), act=True, limit=limit))
    assert [outcome.name for outcome in outcomes] == list(judged)
    assert copies.removed == [outcome.name for outcome in outcomes if outcome.verdict is REAP]
    assert {name for name in judged if judged[name] == LEFT} - stuck <= set(copies.removed)
    expired = [name for name in copies.removed if judged[name] == EXPIRED]
    assert limit is None or len(expired) <= limit
    for outcome in outcomes:
        assert (outcome.error is not None) == (
            judged[outcome.name] is None or (outcome.name in stuck and outcome.reason in ("expired", "half made"))
        )


@given(st.dictionaries(NAMES, VERDICTS), st.none() | st.integers(0, 4))
def test_what_is_shown_is_what_is_done(judged: dict[str, JudgedLease | None], limit: int | None) -> None:
    shown = list(sweep(Copies(dict(judged)).kind(), act=False, limit=limit))
    done = list(sweep(Copies(dict(judged)).kind(), act=True, limit=limit))
    assert [(o.name, o.verdict, o.reason) for o in shown] == [(o.name, o.verdict, o.reason) for o in done]


def test_what_another_process_works_on_stays() -> None:
    copies = Copies({"a": LEFT, "b": LEFT})
    with exclusive("copy-a", doing="working"):
        outcomes = list(sweep(copies.kind(), act=True))
    assert outcomes[0] == ReapOutcome("copy", "a", KEEP, "another process is working on it")
    assert copies.removed == ["b"]


def test_leaks_are_what_was_left_behind_where_nobody_works_and_what_cannot_be_read() -> None:
    copies = Copies({"a": LEFT, "b": LEFT, "c": EXPIRED}, unreadable=(TORN,))
    with exclusive("copy-a", doing="working"):
        found = list(leaks(copies.kind()))
    assert [leak.where for leak in found] == ["tank/torn", "b"]
    assert ("phase is 'redy'" in found[0].what, "zfs get all tank/torn" in found[0].hint) == (True, True)


def test_what_cannot_be_read_stays_and_says_why() -> None:
    copies = Copies({"a": EXPIRED}, unreadable=(TORN,))
    kept, gone = sweep(copies.kind(), act=True)
    assert (kept.name, kept.verdict, gone.verdict) == ("torn", KEEP, REAP)
    assert "phase is 'redy'" in kept.reason
    assert copies.removed == ["a"]


def test_a_sweep_lists_all_copies_once_and_reads_each_alone_under_its_lock() -> None:
    copies, listed = Copies({"a": EXPIRED, "b": LEFT, "c": EXPIRED}), 0

    def known() -> KnownCopies[Paper]:
        nonlocal listed
        listed += 1
        return copies.kind().known()

    def again(copy: Paper) -> Paper | None:
        return None if copy.name == "b" else copy

    assert [one.name for one in sweep(replace(copies.kind(), known=known, again=again), act=True)] == ["a", "c"]
    assert (copies.removed, listed) == (["a", "c"], 1)
