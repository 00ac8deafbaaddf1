"""Numbers with their uncertainty: pass rates, medians, comparisons of two cells on the same tasks.

Pure functions over plain numbers; nothing here knows of rows, tasks or cells. A statistic that the data cannot decide
is `None`, never zero. Intervals *for display* are Wilson's, whose coverage dips at small n; anything that is *claimed*
rests on an exact test.

It does not stop experiments early and does not model clustered rates beyond a bootstrap over tasks.
"""

# Importing scipy.stats takes seconds: it is done where a number needs it, so that `--help` never waits for it.
# ruff: noqa: PLC0415

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from benchmarks.lab.model import Record

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LEVEL = 0.95
RESAMPLES = 5_000
SEED = 20_260_801  # any fixed number: a report made twice from one ledger is the same report
FEWEST_FOR_MEDIAN = 6  # see `median_interval`
FEWEST_TASKS = 8  # below that a bootstrap over tasks covers far less than it says

Method = Literal["wilson", "bootstrap", "task-bootstrap"]


class Interval(Record, frozen=True, kw_only=True):
    """A two-sided interval in the unit of the estimate; `level` is its nominal coverage."""

    low: float
    high: float
    method: Method
    level: float = LEVEL


class Spread(Record, frozen=True, kw_only=True):
    """Times of one kind, seconds. `interval` is of the median; None below 6 values."""

    n: int
    median: float
    best: float
    worst: float
    interval: Interval | None


# ---- rates ----


def wilson(k: int, n: int) -> Interval | None:
    """Score interval of a pass rate, for display (Wilson 1927, https://doi.org/10.2307/2276774). None at n = 0.

    With k = n its lower bound is n / (n + z²): 21 of 21 says "> 84.5 %".
    """
    if not 0 <= k <= n:
        raise ValueError(f"{k} passed of {n} is not a count")
    if n == 0:
        return None
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(LEVEL, method="wilson")
    return Interval(low=float(found.low), high=float(found.high), method="wilson")


def task_rate_interval(counts: Sequence[tuple[int, int]]) -> Interval | None:
    """Interval of the mean of per-task pass rates, by resampling whole tasks: trials of one task are not independent.

    `counts` holds (k, n) per task. None with fewer than 8 tasks, or when every trial ended alike (the bootstrap would
    say that nothing can vary).
    """
    rates = [k / n for k, n in counts if n]
    if len(rates) < FEWEST_TASKS or set(rates) in ({0.0}, {1.0}):
        return None
    return _bootstrap(rates, _mean, "task-bootstrap")


# ---- times ----


def median_interval(values: Sequence[float]) -> Interval | None:
    """Percentile bootstrap of the median, with a fixed seed. None where no such interval can exist.

    Even the widest interval, from smallest to largest value, covers a continuous distribution's median with probability
    1 - 2^(1-n) only (order statistics; David & Nagaraja 2003, section 7.1): below 6 values that is less than 95 %.
    """
    if len(values) < FEWEST_FOR_MEDIAN:
        return None
    return _bootstrap(values, _median, "bootstrap")


def spread(values: Sequence[float]) -> Spread | None:
    """Median, extremes and the median's interval of some seconds; None of nothing."""
    if not values:
        return None
    middle = statistics.median(values)
    return Spread(n=len(values), median=middle, best=min(values), worst=max(values), interval=median_interval(values))


def _bootstrap(values: Sequence[float], statistic: Callable[[Floats], Floats], method: Method) -> Interval:
    import numpy as np

    sample = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(SEED).integers(0, sample.size, (RESAMPLES, sample.size))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(statistic(sample[draws]), (tail, 1 - tail))
    return Interval(low=float(low), high=float(high), method=method)


def _mean(resampled: Floats) -> Floats:
    means: Floats = resampled.mean(axis=1)
    return means


def _median(resampled: Floats) -> Floats:
    import numpy as np

    middles: Floats = np.median(resampled, axis=1)
    return middles


# ---- comparisons ----


def same_rate_p(pairs: Sequence[tuple[int, int, int, int]]) -> float | None:
    """Two-sided exact p-value for "in each task both cells pass equally often"; one (k_a, n_a, k_b, n_b) per task.

    Given each task's total of passes, cell A's share of them is hypergeometric; the sum over tasks is their
    convolution, and the p-value adds all outcomes no likelier than the one seen (the exact conditional test of
    stratified 2x2 tables, Gart 1970, https://doi.org/10.1093/biomet/57.3.471). One task: Fisher's exact test.
    None when no outcome could have differed: nothing to compare, or every trial ended alike.
    """
    import numpy as np
    from scipy.stats import hypergeom

    usable = [p for p in pairs if p[1] and p[3] and 0 < p[0] + p[2] < p[1] + p[3]]
    if not usable:
        return None
    probability = np.ones(1)
    seen = 0
    for k_a, n_a, k_b, n_b in usable:
        passes = k_a + k_b
        lowest, highest = max(0, passes - n_b), min(n_a, passes)
        steps = hypergeom(n_a + n_b, passes, n_a).pmf(np.arange(lowest, highest + 1))
        probability = np.convolve(probability, steps)
        seen += k_a - lowest
    as_unlikely = probability <= probability[seen] * (1 + 1e-9)
    return min(1.0, float(probability[as_unlikely].sum()))


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's step-down adjustment over the comparisons that could be made (Holm 1979); None stays None."""
    known = sorted(((p, name) for name, p in p_values.items() if p is not None), key=lambda pair: pair[0])
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for position, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - position) * p))
        adjusted[name] = largest
    return adjusted
