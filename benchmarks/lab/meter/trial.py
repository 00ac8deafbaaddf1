"""What the meter keeps of one trial: its exchanges, its running totals, its evidence.

`MeterTrial` is handed to the trial; its methods may be called from any thread. The event loop calls the rest.
Evidence: `exchanges/NNN.request|.forwarded|.response` (bodies, bounded) and `exchanges.jsonl` (one record a line).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from benchmarks.lab.dialects import dialect_of
from benchmarks.lab.dialects.prefix import shared_prefix
from benchmarks.lab.meter.observe import Expectation, Observed, exchange_of
from benchmarks.lab.meter.prefixes import PrefixNote, prefix_notes, reread_in_all
from benchmarks.lab.meter.readings import classify, is_answered, is_turn, trailing_repeats
from benchmarks.lab.model import Exchange, Record, ToolCall
from benchmarks.lab.text import digest_of

STUDY_DELAY = 0.002  # seconds after forwarding at which a request is read: while the engine reads it too
BODIES_KEPT = 256  # earlier model requests kept to compare with
BODIES_BYTES = 48 << 20
EVIDENCE_BODY = 16 << 20  # bytes of one body kept as evidence
CALLS_REMEMBERED = 64
CLOSE_SECONDS = 5.0


class Live(Record, frozen=True, kw_only=True):
    """Running totals. Where no count was told (yet), `output` takes an exchange's fragments: a lower bound.

    `prompt_total` is None once an answered exchange did not tell its own.
    """

    open: int
    turns: int
    prompt_total: int | None
    output: int
    last_progress: float | None  # monotonic; a new request, bytes of a reply that is no error: retries are none
    repeats: int  # identical tool calls at the end, without another between


class BoundedFile:
    """A file that takes the first `EVIDENCE_BODY` bytes and drops the rest; `problem` says if it could not be written.

    It is opened by the first write, which comes after that piece was forwarded.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._left = EVIDENCE_BODY
        self.problem: OSError | None = None

    def write(self, data: bytes) -> None:
        """Keep what still fits."""
        if self._left <= 0:
            return
        try:
            self._file = self._file or self._path.open("wb")
            self._file.write(data[: self._left])
            self._left -= len(data)
        except OSError as problem:
            self._left, self.problem = 0, problem

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as problem:
                self.problem = problem


class MeterTrial:
    """One trial on the meter, from `Meter.open_trial` to `close`."""

    def __init__(
        self, trial_id: str, expect: Expectation, evidence: Path | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.trial_id = trial_id
        self.started = time.monotonic()
        self.closed = False
        self._expect = expect
        self._loop = loop
        self._evidence = evidence
        self._exchanges: list[Exchange] = []
        self._open: dict[int, tuple[Observed, Callable[[], None] | None]] = {}
        self._unstudied: deque[Observed] = deque()
        self._bodies: deque[tuple[int, bytes]] = deque()
        self._bodies_size = 0
        self._reasoning: dict[int, int] = {}
        self._first_with: dict[str, int] = {}
        self._calls: deque[ToolCall] = deque(maxlen=CALLS_REMEMBERED)
        self._requests = self._refused = self._output = self._repeats = 0
        self._prompt: int | None = 0
        self._turns_with_tools = self._turns_without = 0
        self._last_progress: float | None = None
        self._faults: list[str] = []
        self._unwritten: str | None = None
        self.release: Callable[[], None] = lambda: None
        if evidence:
            (evidence / "exchanges").mkdir(parents=True, exist_ok=True)

    # ---- for the trial, from any thread ----

    def set_start(self, monotonic: float) -> None:
        """The moment from which all `t_*` count: the client's start."""
        self.started = monotonic

    def live(self) -> Live:
        """Running totals, cheap enough to be asked ten times a second."""
        in_flight = [seen for seen, _ in tuple(self._open.values())]
        return Live(
            open=len(in_flight),
            turns=self._turns_with_tools or self._turns_without,
            prompt_total=self._prompt,
            output=self._output + sum(seen.reply.fragments for seen in in_flight),
            last_progress=self._last_progress,
            repeats=self._repeats,
        )

    def close(self) -> tuple[Exchange, ...]:
        """End the trial: break off what is open, refuse what still comes, return every exchange in order."""
        return asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    def prefix_notes(self) -> tuple[PrefixNote, ...]:
        """After `close`: where turns lost cached prefix, whose doing that was, and what it cost."""
        return prefix_notes(classify(self._in_order()), dict(self._bodies), self._reasoning)

    def reread_tokens(self) -> int | None:
        """After `close`: prompt tokens that the engine read though it had read them for the turn before."""
        return reread_in_all(classify(self._in_order()), dict(self._bodies))

    def refused_after_end(self) -> int:
        """Requests that came after `close`; they were answered 503."""
        return self._refused

    def faults(self) -> tuple[str, ...]:
        """Errors of the meter itself; a trial that has any is void (meter_error)."""
        return tuple(self._faults)

    def unwritten(self) -> str | None:
        """Why evidence could not be written (a full disk), if so."""
        return self._unwritten

    # ---- for the relay, on the event loop ----

    def begin(self, method: str, path: str, body: bytes, t_start: float, t_end: float) -> Observed:
        """A request has arrived whole; it is read a moment later, while the engine works on it."""
        seen = Observed(self._requests, method, path, body, t_start, t_end, dialect_of(method, path))
        if self._evidence and seen.dialect:
            seen.response_file = BoundedFile(self._evidence / "exchanges" / f"{seen.index:03d}.response")
        self._requests += 1
        self._open[seen.index] = (seen, None)
        self._unstudied.append(seen)
        self._loop.call_later(STUDY_DELAY, self._study)
        return seen

    def track(self, seen: Observed, cancel: Callable[[], None]) -> None:
        """How to break the exchange off when the trial ends."""
        self._open[seen.index] = (seen, cancel)

    def passed(self, seen: Observed, at: float) -> None:
        """Bytes of a reply went by."""
        if seen.status is not None and seen.status < 400:
            self._last_progress = at

    def refuse(self) -> None:
        """A request came after the end."""
        self._refused += 1

    def fault(self, error: BaseException) -> None:
        """The meter itself failed."""
        self._faults.append(f"{type(error).__name__}: {error}"[:500])

    def end(self, seen: Observed, at: float) -> None:
        """The exchange is over: make its record and add it to the totals."""
        self._study()
        if self.closed and seen.ended in ("client_closed", "engine_closed") and not seen.reply.done:
            seen.ended, seen.error = "client_closed", "the trial ended"
        seen.finish(at)
        self._open.pop(seen.index, None)
        exchange = exchange_of(seen, self.started, self._expect)
        self._exchanges.append(exchange)
        self._reasoning[seen.index] = seen.reply.reasoning_size
        self._add(exchange, seen.reply.fragments)
        if seen.response_file is not None:
            seen.response_file.close()
            if seen.response_file.problem is not None:
                self._lose_evidence(seen.response_file.problem)
        self._record(exchange)

    # ---- inside ----

    def _study(self) -> None:
        """Read the requests that were forwarded meanwhile, in their order."""
        while self._unstudied:
            seen = self._unstudied.popleft()
            seen.digest = digest_of(seen.body)
            seen.read_request()
            if seen.dialect:
                seen.duplicate_of = self._first_with.get(seen.digest)
                self._first_with.setdefault(seen.digest, seen.index)
                if seen.duplicate_of is None:
                    self._last_progress = max(self._last_progress or 0.0, seen.t_request_end)
                seen.prefix_shared = longest_shared_prefix([body for _, body in self._bodies], seen.body)
                self._remember(seen)
            self._keep_bodies(seen)

    def _remember(self, seen: Observed) -> None:
        self._bodies.append((seen.index, seen.body))
        self._bodies_size += len(seen.body)
        while len(self._bodies) > BODIES_KEPT or self._bodies_size > BODIES_BYTES:
            self._bodies_size -= len(self._bodies.popleft()[1])

    def _add(self, exchange: Exchange, fragments: int) -> None:
        if is_answered(exchange):
            told = exchange.tokens.prompt_total
            self._prompt = None if told is None or self._prompt is None else self._prompt + told
        self._output += fragments if exchange.tokens.output is None else exchange.tokens.output
        if is_turn(exchange):
            self._turns_with_tools += bool(exchange.tools)
            self._turns_without += not exchange.tools
            if exchange.duplicate_of is None:
                self._calls.extend(exchange.calls)
                self._repeats = trailing_repeats(self._calls)

    def _keep_bodies(self, seen: Observed) -> None:
        if self._evidence is None or seen.dialect is None:
            return
        stem = self._evidence / "exchanges" / f"{seen.index:03d}"
        try:
            if seen.duplicate_of is None:  # a client that retries for ever must not fill the disk
                stem.with_suffix(".request").write_bytes(seen.body[:EVIDENCE_BODY])
            if seen.sent is not None:
                stem.with_suffix(".forwarded").write_bytes(seen.sent[:EVIDENCE_BODY])
        except OSError as error:
            self._lose_evidence(error)

    def _record(self, exchange: Exchange) -> None:
        if self._evidence is None:
            return
        try:
            with (self._evidence / "exchanges.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(exchange) + b"\n")
        except OSError as error:
            self._lose_evidence(error)

    def _lose_evidence(self, error: OSError) -> None:
        """A full disk is the trial's finding; the wire goes on."""
        self._evidence, self._unwritten = None, str(error)

    def _in_order(self) -> list[Exchange]:
        return sorted(self._exchanges, key=lambda exchange: exchange.index)

    async def _close(self) -> tuple[Exchange, ...]:
        self.closed = True
        for _, cancel in tuple(self._open.values()):
            if cancel:
                cancel()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._open and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        for index in self._open:  # its tokens would be missing from every sum
            self._faults.append(f"exchange {index} could not be broken off within {CLOSE_SECONDS} s")
        exchanges = classify(self._in_order())
        if self._evidence:
            lines = b"".join(msgspec.json.encode(exchange) + b"\n" for exchange in exchanges)
            (self._evidence / "exchanges.jsonl").write_bytes(lines)
        return exchanges


def longest_shared_prefix(earlier: Sequence[bytes], body: bytes) -> int:
    """Length of the longest prefix that `body` shares with any of `earlier`; the latest is the likeliest."""
    best = 0
    for other in reversed(earlier):
        if other[: best + 1] == body[: best + 1]:
            best = shared_prefix(other, body)
        if best == len(body):
            break
    return best
