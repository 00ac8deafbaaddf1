"""Rates, medians and exact comparisons, against published values and brute-force enumeration."""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from benchmarks.lab import stats


def test_case_27_an_unbroken_run_of_21_says_no_more_than_84_percent() -> None:
    interval = stats.wilson(21, 21)
    assert interval is not None
    assert math.floor(interval.low * 1000) == 845
    assert interval.high == 1.0


def test_case_27_nothing_run_decides_nothing() -> None:
    assert stats.wilson(0, 0) is None
    assert stats.median_interval([]) is None
    assert stats.spread([]) is None
    assert stats.task_rate_interval([]) is None
    assert stats.same_rate_p([]) is None
    assert stats.same_rate_p([(0, 0, 2, 3)]) is None


def test_case_27_three_of_three_against_two_of_three_is_no_difference() -> None:
    assert stats.same_rate_p([(3, 3, 2, 3)]) == pytest.approx(1.0)


def test_case_27_one_value_and_ties_have_a_median_and_no_invented_spread() -> None:
    assert stats.spread([4.0]) == stats.Spread(n=1, median=4.0, best=4.0, worst=4.0, interval=None)
    tied = stats.median_interval([2.0] * 8)
    assert tied is not None
    assert (tied.low, tied.high) == (2.0, 2.0)


def test_case_31_four_runs_of_one_cell_lie_in_the_interval_of_their_median() -> None:
    runs = [54.7, 55.1, 58.2, 59.6]
    assert stats.median_interval(runs) is None, "four values carry no 95 % interval of a median"
    found = stats.spread(runs)
    assert found is not None
    assert found.best <= 54.7
    assert found.worst >= 59.6


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    # Newcombe 1998, Two-sided confidence intervals for the single proportion (Statistics in Medicine 17), table I, 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_newcombes_published_intervals(k: int, n: int, low: float, high: float) -> None:
    interval = stats.wilson(k, n)
    assert interval is not None
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@pytest.mark.parametrize(("rate", "passes"), [(0.90, 35), (0.95, 73)])
def test_how_many_straight_passes_a_rate_needs(rate: float, passes: int) -> None:
    enough, short = stats.wilson(passes, passes), stats.wilson(passes - 1, passes - 1)
    assert enough is not None
    assert short is not None
    assert short.low <= rate < enough.low


@pytest.mark.parametrize(("rate", "trials"), [(0.845, 33), (0.90, 53), (0.95, 110)])
def test_how_many_trials_a_rate_needs_with_one_failure(rate: float, trials: int) -> None:
    enough, short = stats.wilson(trials - 1, trials), stats.wilson(trials - 2, trials - 1)
    assert enough is not None
    assert short is not None
    assert short.low <= rate < enough.low


def binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize(("n", "farthest", "percent"), [(3, 0.0, 83), (35, 0.0, 84), (3, 0.05, 83), (35, 0.05, 92)])
def test_how_little_wilson_covers_at_the_worst_rate(n: int, farthest: float, percent: int) -> None:
    """The figures of docs/methodology.md: over all rates, and over those between 5 and 95 %."""
    intervals = [interval for k in range(n + 1) if (interval := stats.wilson(k, n)) is not None]
    # Coverage jumps at the ends of the intervals, and is lowest beside one of them.
    beside = [end + step for one in intervals for end in (one.low, one.high) for step in (-1e-9, 1e-9)]
    lowest = min(
        sum(binomial(k, n, p) for k, one in enumerate(intervals) if one.low <= p <= one.high)
        for p in beside
        if max(farthest, 1e-6) < p < 1 - max(farthest, 1e-6)
    )
    assert round(100 * lowest) == percent


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (1, 0)])
def test_an_impossible_count_is_an_error(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        stats.wilson(k, n)


@given(st.lists(st.floats(0.1, 1e3), min_size=6, max_size=12))
def test_an_interval_of_the_median_contains_it_and_is_the_same_each_time(values: list[float]) -> None:
    interval = stats.median_interval(values)
    assert interval is not None
    middle = statistics.median(values)
    assert min(values) <= interval.low <= middle <= interval.high <= max(values)
    assert stats.median_interval(values) == interval


def test_five_values_are_too_few_for_an_interval_of_a_median_and_six_are_enough() -> None:
    assert stats.median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert stats.median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) is not None


def test_seven_tasks_or_all_alike_are_no_base_for_a_suite_interval() -> None:
    assert stats.task_rate_interval([(1, 3)] * 4 + [(3, 3)] * 3) is None
    assert stats.task_rate_interval([(3, 3)] * 9) is None
    assert stats.task_rate_interval([(0, 3)] * 9) is None
    mixed = stats.task_rate_interval([(1, 3)] * 4 + [(3, 3)] * 4)
    assert mixed is not None
    assert mixed.low < 2 / 3 < mixed.high


def test_one_task_is_fishers_exact_test() -> None:

    for k_a, k_b in itertools.product(range(8), range(6)):
        expected = fisher_exact(np.array([[k_a, 7 - k_a], [k_b, 5 - k_b]])).pvalue
        found = stats.same_rate_p([(k_a, 7, k_b, 5)])
        assert (1.0 if found is None else found) == pytest.approx(expected)


def test_several_tasks_are_compared_task_by_task_as_by_enumeration() -> None:
    pairs = [(3, 3, 0, 3), (2, 3, 1, 3), (1, 2, 0, 3)]
    by_total: dict[int, float] = {}
    for split in itertools.product(*(range(k_a + k_b + 1) for k_a, _, k_b, _ in pairs)):
        chance = 1.0
        for a, (k_a, n_a, k_b, n_b) in zip(split, pairs, strict=True):
            chance *= math.comb(n_a, a) * math.comb(n_b, k_a + k_b - a) / math.comb(n_a + n_b, k_a + k_b)
        by_total[sum(split)] = by_total.get(sum(split), 0.0) + chance
    seen = by_total[sum(k_a for k_a, *_ in pairs)]
    expected = sum(p for p in by_total.values() if p <= seen * (1 + 1e-9))
    assert stats.same_rate_p(pairs) == pytest.approx(expected)


@pytest.mark.parametrize("p", [(0.5, 0.5), (0.9, 0.2), (0.8, 0.99)])
def test_equal_cells_are_called_different_at_most_one_time_in_twenty(p: tuple[float, float]) -> None:
    """Exact error of the claim over two tasks with unlike rates, three trials per cell: all outcomes enumerated."""
    wrong = 0.0
    for a1, b1, a2, b2 in itertools.product(range(4), repeat=4):
        found = stats.same_rate_p([(a1, 3, b1, 3), (a2, 3, b2, 3)])
        if found is not None and found <= 0.05:
            wrong += binomial(a1, 3, p[0]) * binomial(b1, 3, p[0]) * binomial(a2, 3, p[1]) * binomial(b2, 3, p[1])
    assert wrong <= 0.05


def test_holm_steps_down_and_leaves_the_undecided_alone() -> None:
    # The worked example of Holm's procedure: sorted p times 4, 3, 2, 1, made monotone.
    adjusted = stats.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": None})
    assert adjusted == {
        "a": pytest.approx(0.03),
        "b": pytest.approx(0.06),
        "c": pytest.approx(0.06),
        "d": pytest.approx(0.02),
        "e": None,
    }


def test_importing_the_room_loads_neither_scipy_nor_numpy() -> None:
    code = "import sys, benchmarks.lab.stats; print(any(m in sys.modules for m in ('scipy', 'numpy', 'pandas')))"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
