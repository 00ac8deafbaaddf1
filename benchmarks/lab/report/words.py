"""How a figure is written: one place for units, rounding and the sign for "not known".

`–` stands for what is not known or cannot be decided; a zero is always a zero that was counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from benchmarks.lab.stats import Interval, Spread
from benchmarks.lab.text import shorten

UNKNOWN = "–"
UNKNOWN_MEANS = "`–` is what is not known, or what so few trials cannot decide; it is never zero."


def known(value: object) -> str:
    """A value of a stamp as text: mappings as compact JSON, None as the sign for unknown."""
    if value is None:
        return UNKNOWN
    if isinstance(value, Mapping | list | tuple):
        return msgspec.json.encode(value, order="deterministic").decode()
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def model(name: object) -> str:
    """A model's name; of the path that llama.cpp gives a model without an alias, the file."""
    return re.sub(r"^(/|[A-Za-z]:\\).*[/\\](?=[^/\\])", "", known(name))


def sampler(values: object, limit: int) -> str:
    """What differs most between samplers first, as far as it fits: temperature 0.7, top_p 0.8, …"""
    if not isinstance(values, Mapping):
        return known(values)
    order = {name: place for place, name in enumerate(("temperature", "top_p", "top_k", "min_p"))}
    names = sorted(values, key=lambda name: (order.get(name, len(order)), name))
    told = {name: f"{values[name]:.4g}" if isinstance(values[name], float) else known(values[name]) for name in names}
    return shorten(", ".join(f"{name} {value}" for name, value in told.items()), limit)


def share(value: float | None) -> str:
    """0.623 -> 62 %."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def seconds(value: float | None) -> str:
    """3.24 -> 3.2 s; 1429 -> 1,429 s."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def percent_interval(interval: Interval | None) -> str:
    """[21–94 %]; empty where there is none."""
    return "" if interval is None else f"[{interval.low * 100:.0f}–{interval.high * 100:.0f} %]"


def rate(k: int, n: int, interval: Interval | None) -> str:
    """2/3 [21–94 %]."""
    return f"{k}/{n} {percent_interval(interval)}".rstrip()


def median_wall(spread: Spread | None) -> str:
    """37 s (31–52); with the median's interval in brackets where there is one."""
    if spread is None:
        return UNKNOWN
    parts = [seconds(spread.median)]
    if spread.interval is not None:
        parts.append(f"[{_range(spread.interval.low, spread.interval.high)}]")
    if spread.n > 1:
        parts.append(f"({_range(spread.best, spread.worst)})")
    return " ".join(parts)


def _range(low: float, high: float) -> str:
    return f"{seconds(low).removesuffix(' s')}–{seconds(high).removesuffix(' s')}"


def p_value(value: float | None) -> str:
    """Two digits, never 0."""
    if value is None:
        return UNKNOWN
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def days(moments: Iterable[str]) -> str:
    """Date range of ISO moments: 2026-11-29 to 2026-11-30."""
    dates = sorted(moment[:10] for moment in moments)
    if not dates:
        return UNKNOWN
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"


def short(digest: Any) -> str:
    """The first ten characters of a digest or commit."""
    return UNKNOWN if digest is None else str(digest)[:10]
