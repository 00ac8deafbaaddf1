"""Taking rows back: which rows a person's selector means, and the row that says they no longer count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from benchmarks.lab import series
from benchmarks.lab.errors import UsageError
from benchmarks.lab.ledger.counts import retractions
from benchmarks.lab.ledger.file import Row, stamps
from benchmarks.lab.rows import RetractionRow, Selector

# Lines about other lines; a selector never means them.
ABOUT: Final = frozenset({"stamp", "retraction", "batch_start", "batch_end"})


def retraction(
    rows: Iterable[Row],
    *,
    reason: str,
    ids: tuple[str, ...] = (),
    selector: Selector | None = None,
    document: str | None = None,
    replaced_by: str | None = None,
) -> RetractionRow:
    """The body of a retraction, resolved now: of the rows named, or of those the selector means.

    UsageError: an unknown id, an id of a line that cannot be retracted, or nothing selected.
    """
    every = list(rows)
    kinds = {row.id: row.kind for row in every}
    for name in ids:
        if name not in kinds:
            raise UsageError(f"no row has the id {name}; `scripts/ledger.py list` shows them")
        if kinds[name] in ABOUT - {"retraction"}:
            raise UsageError(f"row {name} is a {kinds[name]}: only results and retractions can be retracted")
    chosen = tuple(dict.fromkeys((*ids, *(resolve(selector, every) if selector is not None else ()))))
    if not chosen:
        raise UsageError("nothing is selected that is not retracted already")
    return RetractionRow(
        ids=chosen,
        count=len(chosen),
        selector=selector,
        reason=reason,
        document=document,
        replaced_by=replaced_by,
    )


def resolve(selector: Selector, rows: Iterable[Row], *, retracted: bool = False) -> tuple[str, ...]:
    """Ids of the rows that a selector means; retracted ones only if asked for. UsageError if it selects by nothing."""
    every = list(rows)
    given = {name: value for name, value in msgspec.to_builtins(selector).items() if value is not None}
    if not given:
        raise UsageError(
            "a selector needs at least one condition; name --client, --engine, --batch, --since or another"
        )
    since, until = _moment(given.pop("since", None), "since"), _moment(given.pop("until", None), "until")
    values, gone = stamps(every), {} if retracted else retractions(every)
    return tuple(
        row.id
        for row in every
        if row.kind not in ABOUT
        and row.id not in gone
        and _within(row, since, until)
        and _matches(row, values.get(row.stamp or ""), given)
    )


def _moment(text: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--{name} {text!r} is no ISO 8601 time; write it like 2026-11-30T20:15 or 2026-11-30"
        ) from None


def _within(row: Row, since: datetime | None, until: datetime | None) -> bool:
    at = datetime.fromisoformat(row.at)
    return (since is None or at >= since) and (until is None or at < until)


def _matches(row: Row, values: Mapping[str, Any] | None, given: Mapping[str, str]) -> bool:
    stamped = values or {}
    for name, wanted in given.items():
        if name == "batch":
            same = row.batch == wanted
        elif name == "series":
            same = series.series_id(series.key(row.body, values)).startswith(wanted)
        elif name in ("task", "backend", "client"):
            same = row.body.get(name) == wanted
        else:
            same = stamped.get(name) == wanted
        if not same:
            return False
    return True
