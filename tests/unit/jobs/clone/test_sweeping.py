"""A sweep of copies: one after the other, each under its lock, whatever goes wrong with the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import CommandError
from zsnapdb.jobs.base.exclusion import exclusive
from zsnapdb.jobs.clone.sweeping import CopyKind, ReapOutcome, SweepVerdict, sweep
from zsnapdb.planning.clone.lease import LeaseVerdict

KEEP, REAP = LeaseVerdict.KEEP, LeaseVerdict.REAP
EXPIRED, LEFT = SweepVerdict(REAP, "expired"), SweepVerdict.leak("half made")


@dataclass
class Copies:
    """Copies in memory. `judged` None: it cannot be judged. Those in `stuck` cannot be removed."""

    judged: dict[str, SweepVerdict | None]
    stuck: frozenset[str] = frozenset()
    removed: list[str] = field(default_factory=list)

    def kind(self) -> CopyKind[str]:
        return CopyKind(
            lambda _: "copy", lambda n: n, lambda: list(self.judged), lambda n: f"copy-{n}", self._judge, self._remove
        )

    def _judge(self, name: str) -> SweepVerdict:
        verdict = self.judged[name]
        if verdict is None:
            raise CommandError(f"{name} cannot be read", hint="")
        return verdict

    def _remove(self, name: str) -> None:
        if name in self.stuck:
            raise CommandError(f"{name} is busy", hint="")
        self.removed.append(name)
        del self.judged[name]


NAMES = st.sampled_from("abcdefgh")
VERDICTS = st.sampled_from([None, SweepVerdict(KEEP, "in use"), EXPIRED, LEFT])


@given(st.dictionaries(NAMES, VERDICTS), st.frozensets(NAMES), st.none() | st.integers(0, 4))
def test_what_was_left_behind_goes_and_of_what_expired_no_more_than_the_limit(
    judged: dict[str, SweepVerdict | None], stuck: frozenset[str], limit: int | None
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
def test_what_is_shown_is_what_is_done(judged: dict[str, SweepVerdict | None], limit: int | None) -> None:
    shown = list(sweep(Copies(dict(judged)).kind(), act=False, limit=limit))
    done = list(sweep(Copies(dict(judged)).kind(), act=True, limit=limit))
    assert [(o.name, o.verdict, o.reason) for o in shown] == [(o.name, o.verdict, o.reason) for o in done]


def test_what_another_process_works_on_stays() -> None:
    copies = Copies({"a": LEFT, "b": LEFT})
    with exclusive("copy-a", doing="working"):
        outcomes = list(sweep(copies.kind(), act=True))
    assert outcomes[0] == ReapOutcome("copy", "a", KEEP, "another process is working on it")
    assert copies.removed == ["b"]
