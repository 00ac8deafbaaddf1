"""Everything that can be wrong with a ledger: torn or unfit lines, doubled ids, missing stamps and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lab import stamp
from benchmarks.lab.errors import LabError
from benchmarks.lab.ledger.counts import effective
from benchmarks.lab.ledger.file import Row, checked_body, decode, numbered_lines, stamps
from benchmarks.lab.text import count, listing


def check(path: Path) -> list[str]:
    """Everything that is wrong with a ledger, one sentence each; [] when it is sound."""
    problems: list[str] = []
    rows: list[Row] = []
    for number, line in numbered_lines(path):
        try:
            row = decode(line)
            checked_body(row.kind, row.body)
            rows.append(row)
        except LabError as error:
            torn = "" if line.endswith(b"\n") else "torn last line: "
            problems.append(f"{path}:{number}: {torn}{error}")
    return problems + [f"{path}: {problem}" for problem in _problems(rows)]


def _problems(rows: list[Row]) -> Iterator[str]:
    ids = Counter(row.id for row in rows)
    if twice := [name for name, times in ids.items() if times > 1]:
        yield f"{count(len(twice), 'id')} used more than once: {listing(twice)}"
    known = stamps(rows)
    for digest, values in known.items():
        if stamp.digest(values) != digest:
            yield f"the stamp {digest[:12]} does not match its values"
    if lost := {row.stamp for row in rows if row.stamp and row.stamp not in known}:
        yield f"{count(len(lost), 'stamp')} missing: {listing(sorted(name[:12] for name in lost))}"
    for one in effective(rows):
        if one.duplicate_of is not None:
            yield f"row {one.row.id} is a second result for the slot of row {one.duplicate_of}; it does not count"
    for row in rows:
        if row.kind == "retraction" and (unknown := [name for name in row.body["ids"] if name not in ids]):
            yield f"retraction {row.id} names rows that are not here: {listing(unknown)}"
    begun = {row.batch for row in rows if row.kind == "batch_start"}
    if orphans := {row.batch for row in rows if row.batch and row.batch not in begun}:
        yield f"{count(len(orphans), 'batch id')} without a batch_start: {listing(sorted(orphans))}"
