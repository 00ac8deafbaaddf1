"""Rows as a report needs them: what cannot be is refused with file and line, before anything is counted.

What a kind's keys mean is `rows`' business, what a line is `ledger`'s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.lab import ledger
from benchmarks.lab.errors import LabError
from benchmarks.lab.ledger import Effective, Row
from benchmarks.lab.model import Shares
from benchmarks.lab.rows import TrialRow

MACHINE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # it names a folder
Say = Callable[[str], None]

ROUNDING_SECONDS: Final = 0.1  # by which rounded shares may miss the wall time


def read(path: Path, say: Say = lambda line: None) -> tuple[Row, ...]:
    """The rows of a ledger for a report; LabError names file and line of the first that it cannot use.

    What no clock or counter can say is refused too, unless it is retracted: then it is in no figure.
    """
    marked = ledger.effective(ledger.read(path, say))
    for number, one in enumerate(marked, 1):
        wrong = _unfit(one)
        if wrong is not None:
            raise LabError(f"{path}:{number}: row {one.row.id}: {wrong}")
    return tuple(one.row for one in marked)


def _unfit(one: Effective) -> str | None:
    """Why a report cannot use this row."""
    if not MACHINE.fullmatch(one.row.machine):
        return f"its `machine` {one.row.machine!r} is no id of a machine; restore its line from git"
    if one.retracted is not None or one.row.kind != "trial":
        return None
    wrong = next(_impossible(ledger.trial(one.row)), None)
    return None if wrong is None else f"{wrong}, which cannot be; restore its line from git, or retract it"


def _impossible(row: TrialRow) -> Iterator[str]:
    """What a clock, a counter or a sum cannot say."""
    numbers = {"wall_seconds": row.wall_seconds, "turns": row.turns, "harness_seconds": row.harness_seconds}
    for name, record in (("shares", row.shares), ("tokens", row.tokens)):
        if record is not None:
            numbers |= {f"{name}.{part}": getattr(record, part) for part in record.__struct_fields__}
    for name, value in numbers.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield f"its `{name}` is {value}"
    if row.shares is not None and abs(_sum(row.shares) - row.shares.wall) > ROUNDING_SECONDS:
        yield f"its `shares` add up to {_sum(row.shares):.1f} s of a wall time of {row.shares.wall:.1f} s"


def _sum(shares: Shares) -> float:
    parts = (name for name in shares.__struct_fields__ if name != "wall")
    return sum(float(getattr(shares, name)) for name in parts)
