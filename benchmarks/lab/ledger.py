"""The ledger: append-only files of one JSON object per line, and what their lines mean together.

Covers: writing a whole line under a lock, mending a torn end, reading with upgrades, stamps, retractions, resuming,
`check`.
Does not cover: what a kind's own keys mean (rows), which rows may be pooled (series), rates (stats, report).

Format, by version of the envelope `{v, kind, id, at, machine, batch, stamp}`; the kind's own keys stand beside it:
1  first version
A line is data when it is a whole JSON object: no beginning of one is, so a torn line is never taken for data.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.lab import fsio, series, stamp
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.model import Record, Verdict
from benchmarks.lab.rows import KINDS, RetractionRow, Selector, TrialRow
from benchmarks.lab.text import Say, count, listing

VERSION: Final = 1
ENVELOPE: Final = ("v", "kind", "id", "at", "machine", "batch", "stamp")

# From the version named to the next one, on the whole line as it was read.
UPGRADERS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}


class Row(Record, frozen=True, kw_only=True):
    """One line: the envelope, and the kind's own keys in `body`. `stamp` is a digest, see `stamps`."""

    v: int
    kind: str
    id: str
    at: str
    machine: str
    batch: str | None = None
    stamp: str | None = None
    body: Mapping[str, Any] = {}


# ---- ids ----

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_id_lock = threading.Lock()
_last_id = 0


def new_id() -> str:
    """A ULID in lower case: 48 bits of milliseconds, 80 random bits; later ones of a process sort after earlier ones.

    Source: the ULID specification, monotonic variant (a clock that jumps back goes on from the last id).
    """
    global _last_id  # noqa: PLW0603 - one sequence per process is what makes it monotonic
    with _id_lock:
        fresh = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
        _last_id = max(fresh, _last_id + 1)
        number = _last_id
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5))


def now() -> str:
    """This moment, ISO 8601 with milliseconds and offset."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


# ---- writing ----


@dataclass(frozen=True)
class Ledger:
    """One ledger file. `say` is told when a torn last line was found and set aside."""

    path: Path
    say: Say = lambda line: None

    def append(
        self,
        kind: str,
        body: Mapping[str, Any] | Record,
        *,
        machine: str,
        batch: str | None = None,
        stamp: str | None = None,
        row_id: str | None = None,
    ) -> str:
        """Write one row, durable when this returns; its id. Bodies of known kinds are checked against their record.

        Raises fsio.DiskFull (the file is unchanged) and LabError (unfit body, no permission).
        """
        row = Row(
            v=VERSION,
            kind=kind,
            id=row_id or new_id(),
            at=now(),
            machine=machine,
            batch=batch,
            stamp=stamp,
            body=checked_body(kind, body),
        )
        self._write(row)
        return row.id

    def append_stamp(self, values: Mapping[str, Any], *, machine: str, batch: str | None = None) -> str:
        """Write a stamp record unless this file has it already; the digest that rows carry."""
        digest = stamp.digest(values)
        if _has_stamp(self.path, digest):  # two writers at once may both write it: they write the same
            return digest
        self.append("stamp", {"values": values}, machine=machine, batch=batch, stamp=digest)
        return digest

    def _write(self, row: Row) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = fsio.append_line(self.path, encode(row), is_whole=lambda tail: _object(tail) is not None)
        except OSError as error:
            raise LabError(f"{self.path}: the row could not be written, {error.strerror}") from error
        if torn is not None:
            self.say(f"{self.path}: its last line was torn ({len(torn)} bytes); set aside in {self.path.name}.torn")


def checked_body(kind: str, body: Mapping[str, Any] | Record) -> dict[str, Any]:
    """A body as plain values, checked against the record of its kind; bodies of unknown kinds are taken as they are."""
    plain: dict[str, Any] = msgspec.to_builtins(body)
    if clash := sorted(set(plain) & set(ENVELOPE)):
        raise LabError(f"a row of kind {kind} may not use the envelope's keys: {listing(clash)}")
    if kind in KINDS:
        try:
            msgspec.convert(plain, KINDS[kind])
        except msgspec.ValidationError as error:
            raise LabError(f"this is no row of kind {kind}: {error}") from None
    return plain


def encode(row: Row) -> bytes:
    """The line of a row, with its line end."""
    envelope = {name: getattr(row, name) for name in ENVELOPE}
    return msgspec.json.encode({**envelope, **row.body}) + b"\n"


# ---- reading ----


def read(path: Path, say: Say = lambda line: None) -> Iterator[Row]:
    """The rows of a ledger in file order, upgraded in memory; nothing if there is no such file.

    A torn last line is told to `say` and left out. LabError names file and line of any other that cannot be read.
    """
    for number, line in _lines(path):
        try:
            row = decode(line)
            if row.kind == "trial":
                trial(row)  # whoever counts results relies on their keys
            yield row
        except LabError as error:
            if not line.endswith(b"\n"):
                say(f"{path}:{number}: the last line is torn and left out; the next writer sets it aside")
                return
            raise LabError(f"{path}:{number}: {error}") from None


def decode(line: bytes) -> Row:
    """One line as a row of this version; LabError says what is wrong with it."""
    found = _object(line)
    if found is None:
        raise LabError("this line is no JSON object; restore it from git, or move it out of the file")
    plain = upgrade(found)
    try:
        envelope = {name: plain.pop(name, None) for name in ENVELOPE}
        return msgspec.convert({**envelope, "body": plain}, Row)
    except msgspec.ValidationError as error:
        raise LabError(f"this line lacks a ledger's envelope: {error}") from None


def upgrade(line: dict[str, Any]) -> dict[str, Any]:
    """A line of any older version as one of `VERSION`, through the table `UPGRADERS`."""
    while (version := line.get("v")) != VERSION:
        if type(version) is not int:
            raise LabError("this line has no version `v`")
        if version > VERSION:
            raise LabError(f"this line has version {version}, newer than this program reads ({VERSION}): update it")
        if version not in UPGRADERS:
            raise LabError(f"this line has version {version}, which cannot be read any more")
        line = {**UPGRADERS[version](line), "v": version + 1}
    return line


def trial(row: Row) -> TrialRow:
    """The typed body of a trial row; keys that a newer program added are left out."""
    known = {name: value for name, value in row.body.items() if name in TrialRow.__struct_fields__}
    try:
        return msgspec.convert(known, TrialRow)
    except msgspec.ValidationError as error:
        raise LabError(f"row {row.id} is no trial of this program's version: {error}") from None


def stamps(rows: Iterable[Row]) -> dict[str, Mapping[str, Any]]:
    """Digest -> stamp values."""
    return {row.stamp: row.body.get("values", {}) for row in rows if row.kind == "stamp" and row.stamp}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if path.exists() and not path.is_file():  # a FIFO would be waited for, a device read for ever
        raise LabError(f"{path} is no plain file, so it can be no ledger")
    try:
        with path.open("rb") as stream:
            yield from enumerate(stream, 1)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from error


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _has_stamp(path: Path, digest: str) -> bool:
    wanted = digest.encode()
    for _, line in _lines(path):
        if wanted in line:
            found = _object(line)
            if found is not None and found.get("kind") == "stamp" and found.get("stamp") == digest:
                return True
    return False


# ---- what counts ----

# Lines about other lines; a selector never means them.
ABOUT: Final = frozenset({"stamp", "retraction", "batch_start", "batch_end"})


class Effective(Record, frozen=True, kw_only=True):
    """A row and whether it counts: `retracted` is the retraction that names it, `duplicate_of` an earlier row."""

    row: Row
    retracted: Row | None = None
    duplicate_of: str | None = None

    @property
    def counts(self) -> bool:
        """Whether statistics may use it (void or not is the verdict's business)."""
        return self.retracted is None and self.duplicate_of is None


class SlotKey(NamedTuple):
    """A slot of a batch's plan, as its rows name it."""

    task: str
    backend: str
    client: str
    trial: int


def effective(rows: Iterable[Row]) -> list[Effective]:
    """All rows, with those marked that do not count: retracted ones, and second results for one slot of a batch."""
    every = list(rows)
    taken_back = retractions(every)
    first: dict[tuple[str, SlotKey], str] = {}
    found = []
    for row in every:
        retraction, twin = taken_back.get(row.id), None
        slot = slot_of(row)
        if retraction is None and row.batch and slot is not None and row.body.get("verdict") != "void":
            seen = first.setdefault((row.batch, slot), row.id)
            twin = seen if seen != row.id else None
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
    except ValueError:
        raise UsageError(
            f"--{name} {text!r} is no ISO 8601 time; write it like 2026-11-30T20:15 or 2026-11-30"
        ) from None


def _within(row: Row, since: datetime | None, until: datetime | None) -> bool:
    if since is until is None:
        return True
    try:
        at = datetime.fromisoformat(row.at).astimezone()
    except ValueError:
        raise UsageError(
            f"row {row.id}: its time `at` {row.at!r} is no ISO 8601 time, so --since and --until cannot place it; "
            "select by --batch or by ids"
        ) from None
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


# ---- resuming ----


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


# ---- checking ----


def check(path: Path) -> list[str]:
    """Everything that is wrong with a ledger, one sentence each; [] when it is sound."""
    problems: list[str] = []
    rows: list[Row] = []
    for number, line in _lines(path):
        try:
            rows.append(decode(line))
            if rows[-1].kind in KINDS:
                checked_body(rows[-1].kind, rows[-1].body)
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
