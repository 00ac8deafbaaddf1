"""What is computed of gathered rows: one entry per task and column, target rates, comparisons, counts of causes.

Records of plain numbers, as `summarize.py --json` writes them. `None` is "not known" or "not decidable"; nothing is
rounded and nothing is worded here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import msgspec

from benchmarks.lab import stats
from benchmarks.lab.model import Record
from benchmarks.lab.report.gather import Column, Place, Section, TaskVariant, Trial
from benchmarks.lab.stats import Interval, Spread

SCREENING = 3  # trials per task, at most: a screening run
CLAIM = 0.05


class Entry(Record, frozen=True, kw_only=True):
    """One task in one column: k passed of n counted trials, void ones beside them; times in seconds."""

    task: str
    variant: str
    target: str
    column: str
    k: int
    n: int
    void: int
    interval: Interval | None
    wall: Spread | None  # of all counted trials
    wall_passed: Spread | None
    wall_failed: Spread | None
    prefill_share: float | None  # of the wall time, over counted trials that know both
    prefill_is_least: bool  # some model time could not be split: the true share may be higher

    @property
    def place(self) -> Place:
        """Which line of the tables it is in."""
        return (self.target, self.task, self.variant)


class TargetRate(Record, frozen=True, kw_only=True):
    """One target in one column. `rate`: mean over its tasks, each counting the same; its interval resamples tasks."""

    target: str
    column: str
    tasks: int
    k: int
    n: int
    void: int
    rate: float | None
    interval: Interval | None


class MacroAverage(Record, frozen=True, kw_only=True):
    """Mean of a column's target rates, each target counting the same; None without a counted trial."""

    column: str
    targets: int
    rate: float | None


class Comparison(Record, frozen=True, kw_only=True):
    """Two columns on the tasks both have run. `p`: exact, two-sided; `adjusted`: Holm's over the section's pairs."""

    a: str
    b: str
    tasks: int
    k_a: int
    n_a: int
    k_b: int
    n_b: int
    p: float | None
    adjusted: float | None
    more: str | None  # the column that passes more often, if that can be claimed
    differ: tuple[str, ...]  # of sampler, output cap and reasoning effort: a difference that may be the cause


class Tally(Record, frozen=True, kw_only=True):
    """How often something was said of a column's trials; `who` answers for a failure."""

    column: str
    what: str
    who: str | None
    count: int


class Figures(Record, frozen=True, kw_only=True):
    """Everything computed of one section."""

    entries: tuple[Entry, ...]
    targets: tuple[TargetRate, ...]  # of the latest definition of each task: definitions are never pooled
    macro: tuple[MacroAverage, ...]
    comparisons: tuple[Comparison, ...]
    failures: tuple[Tally, ...]
    voids: tuple[Tally, ...]
    flags: tuple[Tally, ...]
    screening: tuple[str, ...]  # letters of columns with at most three counted trials of each task


def figures(section: Section) -> Figures:
    """Compute one section. Comparisons only among measured, locked, current columns."""
    entries = tuple(entry(column, task) for task in section.tasks for column in section.columns)
    latest = section.current
    current = [e for e in entries if e.place in latest]
    targets = tuple(
        rate for column in section.columns for rate in _target_rates(column.letter, current) if rate.n or rate.void
    )
    return Figures(
        entries=entries,
        targets=targets,
        macro=tuple(_macro(column.letter, targets) for column in section.columns),
        comparisons=_comparisons(section, entries) if section.ranked else (),
        failures=_tallies(section.columns, lambda t: [(t.row.cause, t.row.who)] if t.row.verdict == "failed" else []),
        voids=_tallies(section.columns, lambda t: [(t.row.reason, None)] if t.row.verdict == "void" else []),
        flags=_tallies(section.columns, lambda t: [(flag, None) for flag in t.row.flags]),
        screening=tuple(column.letter for column in section.columns if _is_screening(column.letter, entries)),
    )


def entry(column: Column, task: TaskVariant) -> Entry:
    """All trials of one task in one column."""
    trials = [t for t in column.trials if (t.task, t.task_key) == ((task.target, task.task), task.key)]
    counted = [t for t in trials if t.counted]
    passed = [t for t in counted if t.row.verdict == "passed"]
    share, at_least = _prefill(counted)
    return Entry(
        task=task.task,
        variant=task.variant,
        target=task.target,
        column=column.letter,
        k=len(passed),
        n=len(counted),
        void=len(trials) - len(counted),
        interval=stats.wilson(len(passed), len(counted)),
        wall=_walls(counted),
        wall_passed=_walls(passed),
        wall_failed=_walls([t for t in counted if t.row.verdict == "failed"]),
        prefill_share=share,
        prefill_is_least=at_least,
    )


def _walls(trials: Sequence[Trial]) -> Spread | None:
    return stats.spread([t.row.wall_seconds for t in trials if t.row.wall_seconds is not None])


def _prefill(trials: Sequence[Trial]) -> tuple[float | None, bool]:
    shares = [t.row.shares for t in trials if t.row.shares is not None]
    wall = sum(share.wall for share in shares)
    if not wall:
        return None, False
    return sum(share.prefill for share in shares) / wall, any(share.model_unsplit > 0 for share in shares)


def _is_screening(letter: str, entries: Sequence[Entry]) -> bool:
    counts = [e.n for e in entries if e.column == letter and e.n]
    return bool(counts) and max(counts) <= SCREENING


# ---- suites ----


def _target_rates(letter: str, entries: Sequence[Entry]) -> list[TargetRate]:
    own = [e for e in entries if e.column == letter]
    return [_target_rate(target, letter, own) for target in sorted({e.target for e in own})]


def _target_rate(target: str, letter: str, entries: Sequence[Entry]) -> TargetRate:
    here = [e for e in entries if e.target == target]
    run = [e for e in here if e.n]
    return TargetRate(
        target=target,
        column=letter,
        tasks=len(run),
        k=sum(e.k for e in run),
        n=sum(e.n for e in run),
        void=sum(e.void for e in here),
        rate=fmean(e.k / e.n for e in run) if run else None,
        interval=stats.task_rate_interval([(e.k, e.n) for e in run]),
    )


def _macro(letter: str, targets: Sequence[TargetRate]) -> MacroAverage:
    rates = [t.rate for t in targets if t.column == letter and t.rate is not None]
    return MacroAverage(column=letter, targets=len(rates), rate=fmean(rates) if rates else None)


# ---- pairs ----


def _comparisons(section: Section, entries: Sequence[Entry]) -> tuple[Comparison, ...]:
    raw = [_compare(a, b, entries) for a, b in combinations(section.columns, 2)]
    adjusted = stats.holm({f"{c.a}/{c.b}": c.p for c in raw})
    return tuple(_claimed(c, adjusted[f"{c.a}/{c.b}"], entries) for c in raw)


def _shared_tasks(a: str, b: str, entries: Sequence[Entry]) -> list[tuple[int, int, int, int]]:
    of_b = {e.place: e for e in entries if e.column == b and e.n}
    pairs = [(e, of_b.get(e.place)) for e in entries if e.column == a and e.n]
    return [(one.k, one.n, other.k, other.n) for one, other in pairs if other is not None]


def _compare(a: Column, b: Column, entries: Sequence[Entry]) -> Comparison:
    pairs = _shared_tasks(a.letter, b.letter, entries)
    settings = [
        {"sampler": one.sampler, **{name: one.values.get(name) for name in ("max_tokens", "reasoning_effort")}}
        for one in (a, b)
    ]
    return Comparison(
        a=a.letter,
        b=b.letter,
        tasks=len(pairs),
        k_a=sum(k for k, _, _, _ in pairs),
        n_a=sum(n for _, n, _, _ in pairs),
        k_b=sum(k for _, _, k, _ in pairs),
        n_b=sum(n for _, _, _, n in pairs),
        p=stats.same_rate_p(pairs),
        adjusted=None,
        more=None,
        differ=tuple(name for name, value in settings[0].items() if value != settings[1][name]),
    )


def _claimed(found: Comparison, adjusted: float | None, entries: Sequence[Entry]) -> Comparison:
    """The pair with its adjusted p-value and, below 5 %, the column that passes more often than expected of equals."""
    more = None
    if adjusted is not None and adjusted <= CLAIM:
        pairs = _shared_tasks(found.a, found.b, entries)
        expected = sum((k_a + k_b) * n_a / (n_a + n_b) for k_a, n_a, k_b, n_b in pairs)
        more = found.a if found.k_a > expected else found.b
    return msgspec.structs.replace(found, adjusted=adjusted, more=more)


# ---- counts ----


def _tallies(
    columns: Sequence[Column], said: Callable[[Trial], Sequence[tuple[str | None, str | None]]]
) -> tuple[Tally, ...]:
    found = []
    for column in columns:
        counts = Counter(what for trial in column.trials for what in said(trial))
        found += [
            Tally(column=column.letter, what=what or "not said", who=who, count=number)
            for (what, who), number in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        ]
    return tuple(found)
