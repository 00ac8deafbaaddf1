"""Rows as a report needs them: what `ledger.read` lets through and still cannot be is refused with file and line.

Retracted trials are not looked at, since they are in no figure. What a kind's keys mean is `rows`' business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.lab import ledger
from benchmarks.lab.errors import LabError
from benchmarks.lab.ledger import Row
from benchmarks.lab.model import Shares
from benchmarks.lab.rows import TrialRow

MACHINE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # it names a folder
ROUNDING_SECONDS: Final = 0.1  # by which rounded shares may miss the wall time


def read(path: Path, say: Callable[[str], None] = lambda line: None) -> tuple[Row, ...]:
    """The rows of a ledger for a report; LabError names file and line of the first that it cannot use."""
    marked = ledger.effective(ledger.read(path, say))
    for number, one in enumerate(marked, 1):
        wrong = _unfit(one.row, retracted=one.retracted is not None)
        if wrong is not None:
            raise LabError(f"{path}:{number}: row {one.row.id}: {wrong}")
    return tuple(one.row for one in marked)


def moment(row: Row) -> datetime:
    """When a row was written, as an instant; ValueError where its time has no offset."""
    found = datetime.fromisoformat(row.at)
    if found.tzinfo is None:
        raise ValueError(f"its time `at` {row.at!r} has no offset; restore its line from git")
    return found


def _unfit(row: Row, *, retracted: bool) -> str | None:
    """Why a report cannot use this row."""
    try:
        moment(row)
    except ValueError as error:
        return str(error)
    if not MACHINE.fullmatch(row.machine):
        return f"its `machine` {row.machine!r} is no id of a machine; restore its line from git"
    wrong = None if retracted or row.kind != "trial" else next(_impossible(ledger.trial(row)), None)
    return None if wrong is None else f"{wrong}, which cannot be; restore its line from git, or retract it"


def _impossible(row: TrialRow) -> Iterator[str]:
    """What a clock, a counter or a sum cannot say."""
    records = {"shares": row.shares, "tokens": row.tokens, "tokens_auxiliary": row.tokens_auxiliary}
    for name, record in records.items():
        for part, value in () if record is None else msgspec.structs.asdict(record).items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                yield f"its `{name}.{part}` is {value}"
    if row.shares is not None and abs(_sum(row.shares) - row.shares.wall) > ROUNDING_SECONDS:
        yield f"its `shares` add up to {_sum(row.shares):.1f} s of a wall time of {row.shares.wall:.1f} s"


def _sum(shares: Shares) -> float:
    return float(sum(value for name, value in msgspec.structs.asdict(shares).items() if name != "wall"))
