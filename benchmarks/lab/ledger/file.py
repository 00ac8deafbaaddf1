"""The file of a ledger: append-only, one JSON object per line, written whole under a lock and read with upgrades.

Covers: ids, mending a torn end, versions, stamps.
Does not cover: which lines count (counts), what is wrong with a file (soundness).

Format, by version of the envelope `{v, kind, id, at, machine, batch, stamp}`; the kind's own keys stand beside it:
1  first version
A line is data when it is a whole JSON object: no beginning of one is, so a torn line is never taken for data.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.lab import fsio, stamp
from benchmarks.lab.errors import LabError
from benchmarks.lab.model import Record
from benchmarks.lab.rows import KINDS, TrialRow
from benchmarks.lab.text import Say, listing

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


def read(path: Path, say: Say = lambda line: None) -> Iterator[Row]:
    """The rows of a ledger in file order, upgraded in memory; nothing if there is no such file.

    A torn last line is told to `say` and left out. LabError names file and line of any other that cannot be read.
    """
    for number, line in numbered_lines(path):
        try:
            row = decode(line)
            typed(row)  # whoever counts, resumes or takes back relies on the keys of its kind
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
        row = msgspec.convert({**envelope, "body": plain}, Row)
    except msgspec.ValidationError as error:
        raise LabError(f"this line lacks a ledger's envelope: {error}") from None
    if not _is_moment(row.at):
        raise LabError(f"row {row.id}: its time `at` {row.at!r} is no ISO 8601 time with an offset")
    return row


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


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


def typed(row: Row) -> Record | None:
    """The body as the record of its kind, without keys that a newer program added; None for a kind unknown here."""
    record = KINDS.get(row.kind)
    if record is None:
        return None
    known = {name: value for name, value in row.body.items() if name in record.__struct_fields__}
    try:
        return msgspec.convert(known, record)
    except msgspec.ValidationError as error:
        raise LabError(f"row {row.id} is no {row.kind} of this program's version: {error}") from None


def trial(row: Row) -> TrialRow:
    """The typed body of a trial row."""
    found = typed(row)
    if not isinstance(found, TrialRow):
        raise LabError(f"row {row.id} is of kind {row.kind}, no trial")
    return found


def stamps(rows: Iterable[Row]) -> dict[str, Mapping[str, Any]]:
    """Digest -> stamp values."""
    return {row.stamp: row.body.get("values", {}) for row in rows if row.kind == "stamp" and row.stamp}


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a ledger as they stand, counted from 1; nothing if there is no such file."""
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _has_stamp(path: Path, digest: str) -> bool:
    wanted = digest.encode()
    for _, line in numbered_lines(path):
        if wanted in line:
            found = _object(line)
            if found is not None and found.get("kind") == "stamp" and found.get("stamp") == digest:
                return True
    return False
