"""The benchmark of waits says what its windows show, how sure that is, and nothing where noise is larger."""

from __future__ import annotations

import random

import pytest

from tests.bench.stall_statistics import (
    LEAST_ROUNDS,
    Interval,
    Tail,
    beginning_within,
    difference_of_medians,
    median,
    objection,
    ratio_of_tails,
    resampled,
    tail,
)


@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 2000, 3456, 10_000])
def test_a_tail_is_the_value_of_the_nearest_rank(count: int) -> None:
    waits = [float(number) for number in range(1, count + 1)]
    random.Random(1).shuffle(waits)
    rank = -(-count * 999 // 1000)
    assert Tail([waits]).of([0]) == rank


def test_rounds_count_as_often_as_they_were_drawn_and_others_not_at_all() -> None:
    windows = [[1.0] * 999 + [9.0], [2.0] * 1000, [50.0] * 4]
    assert Tail(windows).of([0]) == 1.0
    assert Tail(windows).of([1, 0]) == 2.0
    assert Tail(windows).of([0, 0, 1, 2]) == 50.0
    assert Tail([[1.0, 2.0, 3.0, 4.0], [7.0]], 0.5).of([0, 1, 1, 1, 1]) == 4.0
    with pytest.raises(ValueError, match="no waits"):
        Tail([[], []]).of([0, 1])


def test_a_window_is_cut_before_the_wait_that_begins_behind_it() -> None:
    waits = [2.0, 3.0, 400.0, 1.0, 1.0]
    assert beginning_within(waits, -1.0, 4.0) == [2.0, 3.0]
    assert beginning_within(waits, -1.0, 4.5) == [2.0, 3.0, 400.0]
    assert beginning_within(waits, -1.0, 404.0) == [2.0, 3.0, 400.0]
    assert beginning_within(waits, -1.0, 9000.0) == waits
    assert beginning_within([], 0.0, 5.0) == []


def normal(seed: int, mean: float, count: int = 40) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(mean, 1.0) for _ in range(count)]


def test_an_interval_has_the_truth_in_it_about_as_often_as_it_says() -> None:
    hits = sum(interval.low <= 10.0 <= interval.high for interval in (median(normal(seed, 10.0)) for seed in range(40)))
    assert 34 <= hits <= 40


def test_an_interval_gets_narrower_with_more_rounds_and_is_the_same_each_time() -> None:
    few, many = median(normal(1, 5.0, 30)), median(normal(1, 5.0, 600))
    assert many.high - many.low < few.high - few.low
    assert few == median(normal(1, 5.0, 30))
    assert few.low < few.value < few.high


def test_drift_that_hits_all_cases_of_a_round_is_no_difference() -> None:
    drift = [float(number) for number in range(40)]
    interval = difference_of_medians([value + 3.0 for value in drift], drift)
    assert (interval.low, interval.value, interval.high) == (3.0, 3.0, 3.0)
    windows = [[1.0 + level] * 50 for level in drift]
    doubled = ratio_of_tails([[2 * wait for wait in waits] for waits in windows], windows)
    assert (doubled.low, doubled.value, doubled.high) == (2.0, 2.0, 2.0)


def test_a_tail_that_one_round_alone_has_is_uncertain() -> None:
    windows = [[1.0] * 100 for _ in range(40)]
    windows[7][:8] = [500.0] * 8
    interval = tail(windows)
    assert (interval.low, interval.value, interval.high) == (1.0, 500.0, 500.0)


def test_the_statistic_of_all_rounds_is_the_value() -> None:
    interval = resampled(lambda rounds: float(sum(rounds)), 30)
    assert interval.value == sum(range(30))
    assert interval.low < interval.value < interval.high


QUIET, LOUD = Interval(0.95, 1.0, 1.05), Interval(0.4, 1.0, 1.9)


@pytest.mark.parametrize(
    ("measured", "noise", "rounds", "reason"),
    [
        (Interval(1.0, 1.1, 1.2), QUIET, LEAST_ROUNDS, None),
        (Interval(1.0, 1.01, 1.2), QUIET, LEAST_ROUNDS, None),
        (Interval(2.5, 3.0, 3.5), LOUD, LEAST_ROUNDS, None),
        (Interval(1.0, 1.1, 1.2), LOUD, LEAST_ROUNDS, "differs from itself by up to 0.9"),
        (Interval(0.1, 0.2, 0.3), LOUD, LEAST_ROUNDS, "differs from itself by up to 0.9"),
        (Interval(2.5, 3.0, 3.5), QUIET, LEAST_ROUNDS - 1, "29 rounds prove nothing"),
    ],
)
def test_what_is_not_clear_of_the_noise_of_the_untouched_server_is_not_reported(
    measured: Interval, noise: Interval, rounds: int, reason: str | None
) -> None:
    said = objection(measured, noise, neutral=1.0, margin=0.2, rounds=rounds)
    assert said is None if reason is None else said is not None and reason in said


def test_where_there_is_no_goal_any_effect_must_be_larger_than_the_noise() -> None:
    noise = Interval(-2.0, 0.0, 3.0)
    assert objection(Interval(3.0, 4.0, 5.0), noise, neutral=0.0, margin=0.0, rounds=30) is None
    assert objection(Interval(1.0, 2.5, 5.0), noise, neutral=0.0, margin=0.0, rounds=30) is not None
