"""How late the recorded load was is told by when each transaction was due, and how far the server was then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.migration_findings import AppliedSample, LoadFindings, RecordedTransaction, load_findings

SET = "20261127T040000Z-aaaa"


def findings(due: list[float], samples: list[AppliedSample], began: float = 2.0, error: str = "") -> LoadFindings:
    recorded = [RecordedTransaction(1 + at // 10, 100 * (1 + at % 10), seconds) for at, seconds in enumerate(due)]
    return load_findings(SET, recorded, samples, began, error)


def test_a_transaction_that_waits_is_late_from_when_it_was_due() -> None:
    due = [0.0, 1.0, 2.0, 3.0]
    samples = [AppliedSample(0.5, 1, 100), AppliedSample(1.75, 1, 100), *(AppliedSample(t, 1, 200) for t in (3, 6, 8))]
    judged = findings(due, [*samples, AppliedSample(8.5, 1, 300)])
    assert judged == LoadFindings(SET, 3, 2.0, late=6.0, late_before=0.75, is_through=False)


def test_a_load_that_was_all_applied_says_so_and_is_not_late_afterwards() -> None:
    judged = findings([0.0, 1.0], [AppliedSample(1.5, 1, 200), AppliedSample(99.0, 2, 4)])
    assert (judged.transactions, judged.is_through, judged.late) == (2, True, 0.0)


def test_a_load_that_stopped_counts_what_was_applied_before() -> None:
    judged = findings([0.0] * 12, [AppliedSample(1.0, 2, 100)], error="Column 1 cannot be converted")
    assert (judged.transactions, judged.is_through, judged.error) == (11, False, "Column 1 cannot be converted")


@given(
    st.lists(st.floats(0, 100), max_size=30), st.lists(st.tuples(st.floats(0, 100), st.integers(0, 31)), max_size=30)
)
def test_lateness_is_the_longest_over_all_samples(due: list[float], progress: list[tuple[float, int]]) -> None:
    """Against the definition, without walking along: each sample's next transaction, and when it was due."""
    due.sort()
    times, counts = sorted(t for t, _ in progress), sorted(min(n, len(due)) for _, n in progress)
    samples = [
        AppliedSample(t, *((0, 0) if n == 0 else (1 + (n - 1) // 10, 100 * (1 + (n - 1) % 10))))
        for t, n in zip(times, counts, strict=True)
    ]
    judged = findings(due, samples, began=50.0)
    late = [max(0.0, t - due[n]) for t, n in zip(times, counts, strict=True) if n < len(due) and t >= 50.0]
    assert judged.late == max(late, default=0.0)
    assert judged.transactions == max(counts, default=0)
