"""What rows mean together: which count, which are taken back, and where an unfinished batch stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.lab.ledger.file import Row
from benchmarks.lab.model import Record, Verdict


class SlotKey(NamedTuple):
    """A slot of a batch's plan, as its rows name it."""

    task: str
    backend: str
    client: str
    trial: int


class Effective(Record, frozen=True, kw_only=True):
    """A row and whether it counts: `retracted` is the retraction that names it, `duplicate_of` an earlier row.

    A line that stands twice, as merges by union leave it, is a duplicate of its own id.
    """

    row: Row
    retracted: Row | None = None
    duplicate_of: str | None = None

    @property
    def counts(self) -> bool:
        """Whether statistics may use it (void or not is the verdict's business)."""
        return self.retracted is None and self.duplicate_of is None


def effective(rows: Iterable[Row]) -> list[Effective]:
    """All rows, with those marked that do not count: retracted ones, and second results for one slot of a batch."""
    every = list(rows)
    taken_back = retractions(every)
    first: dict[tuple[str, SlotKey], str] = {}
    ids: set[str] = set()
    found = []
    for row in every:
        retraction, twin = taken_back.get(row.id), row.id if row.id in ids else None
        slot = slot_of(row)
        if retraction is None and row.batch and slot is not None and row.body.get("verdict") != "void":
            seen = first.setdefault((row.batch, slot), row.id)
            twin = twin if seen == row.id else seen
        ids.add(row.id)
        found.append(Effective(row=row, retracted=retraction, duplicate_of=twin))
    return found


def slot_of(row: Row) -> SlotKey | None:
    """The slot a trial row fills; None for other kinds."""
    if row.kind != "trial":
        return None
    body = row.body
    return SlotKey(
        str(body.get("task")), str(body.get("backend")), str(body.get("client")), int(body.get("trial") or 0)
    )


def retractions(rows: Iterable[Row]) -> dict[str, Row]:
    """Id of a retracted row -> the retraction in force. A retraction that is itself retracted is not."""
    found: dict[str, Row] = {}
    for row in reversed([row for row in rows if row.kind == "retraction"]):
        if row.id not in found:
            found.update(dict.fromkeys(row.body.get("ids", ()), row))
    return found


class Resume(Record, frozen=True, kw_only=True):
    """An unfinished batch: its results so far, void ones included, retracted and duplicate ones left out."""

    batch: str
    results: tuple[tuple[SlotKey, Verdict], ...]


def resume(rows: Iterable[Row], plan_digest: str) -> Resume | None:
    """The newest batch with this plan, if it has no `batch_end`; None: start a new one.

    A plan whose suite, lab file or code changed has another digest, so its results are never mixed with older ones.
    """
    every = effective(rows)
    starts = [
        one.row for one in every if one.row.kind == "batch_start" and one.row.body.get("plan_digest") == plan_digest
    ]
    if not starts:
        return None
    batch = max(starts, key=lambda row: row.id).batch
    mine = [one for one in every if one.row.batch == batch]
    if batch is None or any(one.row.kind == "batch_end" for one in mine):
        return None
    trials = [(slot_of(one.row), one.row.body["verdict"]) for one in mine if one.row.kind == "trial" and one.counts]
    return Resume(batch=batch, results=tuple((slot, verdict) for slot, verdict in trials if slot is not None))
