"""One exchange under observation: counts and digests while bytes pass, and the `Exchange` record in the end.

It sees copies of what was already forwarded. Reading can fail without harm to the client: what cannot be read is None.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from benchmarks.lab.dialects import (
    DIALECTS,
    Reply,
    RequestFacts,
    decode,
    engine_timings,
    kind_of_error,
    obj,
    read_request,
    tokens_of,
)
from benchmarks.lab.dialects.facts import error_text
from benchmarks.lab.dialects.sse import EventStream
from benchmarks.lab.dialects.textual import textual_calls
from benchmarks.lab.meter.http1 import Headers, value
from benchmarks.lab.model import Dialect, Exchange, ExchangeEnd, Record, Tokens
from benchmarks.lab.text import digest_of

WHOLE_LIMIT = 32 << 20  # bytes of an unstreamed reply kept to be read
COMPRESSED = (b"gzip", b"x-gzip", b"deflate")
INFLATED_PIECE = 1 << 20  # bytes decompressed at a time

SIDE_WORK = re.compile(
    r"title generator|generat\w+ (a|the) (short |brief |concise )*(conversation |session )?title"
    r"|summari[sz]\w+ (the |this |a |our )?(coding )?(conversation|session|chat)|compact\w* (the|this) conversation",
    re.IGNORECASE,
)


class Expectation(Record, frozen=True, kw_only=True):
    """What the trial expects of the wire. Which model names may answer is `findings`' to compare."""

    prompt: str | None = None


class Sink(Protocol):
    """Where a reply's bytes are kept as evidence. `problem`: why they could not be, if so."""

    problem: OSError | None

    def write(self, data: bytes) -> None:
        """Keep bytes."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


@dataclass(slots=True)
class Observed:
    """Everything known of an exchange so far. Times are monotonic seconds of the machine, not of the trial."""

    index: int
    method: str
    path: str
    body: bytes
    t_start: float
    t_request_end: float
    dialect: Dialect | None = None
    digest: str = ""
    sent: bytes | None = None  # the body as forwarded, where rewrites changed it
    rewritten: tuple[str, ...] = ()
    prefix_shared: int = 0
    duplicate_of: int | None = None
    cap: int | None = None  # on output, as the engine was told
    facts: RequestFacts = field(default_factory=RequestFacts)
    read: bool = False  # the request's facts are in

    status: int | None = None
    streamed: bool = False
    readable: bool = True
    inflater: zlib._Decompress | None = None
    events: EventStream = field(default_factory=EventStream)
    whole: bytearray = field(default_factory=bytearray)
    reply: Reply = field(default_factory=Reply)
    response_bytes: int = 0
    response_hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    response_file: Sink | None = None
    t_first_byte: float | None = None
    t_end: float = 0.0
    ended: ExchangeEnd = "complete"
    error: str | None = None

    # ---- the request ----

    def read_request(self) -> None:
        """Read what the request asks for (after it was forwarded)."""
        if self.dialect:
            self.facts = read_request(self.dialect, self.body)
            if self.sent is not None:
                # What the client chose stays on the record; the cap that counts is the one the engine was told.
                self.cap = read_request(self.dialect, self.sent).output_cap
            else:
                self.cap = self.facts.output_cap
        self.read = True

    # ---- the reply ----

    def head(self, status: int, headers: Headers) -> None:
        """The reply's status and headers say how to read it."""
        self.status = status
        self.streamed = b"text/event-stream" in value(headers, b"content-type").lower()
        encoding = value(headers, b"content-encoding").strip().lower()
        if encoding in COMPRESSED:
            self.inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self.readable = encoding in (b"", b"identity", *COMPRESSED)

    def piece(self, data: bytes, at: float) -> None:
        """A piece of the reply's body that arrived at `at` and has been forwarded."""
        self.response_bytes += len(data)
        self.response_hash.update(data)
        if self.response_file is not None:
            self.response_file.write(data)
        if not self.readable or self.dialect is None:
            return
        if self.inflater is None:
            self._text(data, at)
        else:
            self._inflate(self.inflater, data, at)

    def _inflate(self, inflater: zlib._Decompress, data: bytes, at: float) -> None:
        try:
            while data:
                self._text(inflater.decompress(data, INFLATED_PIECE), at)
                data = inflater.unconsumed_tail
        except zlib.error:
            self.readable = False

    def _text(self, data: bytes, at: float) -> None:
        if self.streamed:
            self._events(self.events.feed(data), at)
        elif len(self.whole) + len(data) <= WHOLE_LIMIT:
            self.whole += data
        else:
            self.readable = False
            self.whole.clear()

    def _events(self, events: list[tuple[str, bytes]], at: float) -> None:
        read = DIALECTS[self.dialect].event if self.dialect else None
        for name, data in events:
            if data == b"[DONE]":
                self.reply.done = True
            elif read:
                read(self.reply, name, obj(decode(data)), at)

    def finish(self, at: float) -> None:
        """No more will come: read what only the end makes readable, and settle how it ended."""
        self.t_end = at
        if not self.read:
            self.read_request()
        if self.streamed and self.dialect:
            self._events(self.events.finish(), at)
        elif self.dialect and self.readable and self.whole:
            self._read_whole(self.dialect)
        self.whole.clear()
        if self.ended == "client_closed" and self.reply.done:
            self.ended, self.error = "complete", None  # clients were seen to hang up on [DONE], before the last chunk
        if self.reply.failed and self.ended in ("complete", "engine_closed"):
            self.ended, self.error = "error_event", self.reply.error
        elif self.ended == "complete" and self._lacks_its_end():
            self.ended = "engine_closed"
            self.error = "the stream stopped without its closing event"

    def _read_whole(self, dialect: Dialect) -> None:
        value = decode(bytes(self.whole))
        if self.status is not None and self.status >= 400:
            raw = bytes(self.whole[:2000]).decode(errors="replace")
            self.error = error_text(value) if value is not None else raw
        else:
            DIALECTS[dialect].whole(self.reply, obj(value))

    def _lacks_its_end(self) -> bool:
        """A stream needs its closing event; a chat stream that gave its finish reason counts as closed too."""
        if not self.streamed or not self.readable or self.dialect is None or (self.status or 0) >= 400:
            return False
        return not self.reply.done and not (self.dialect == "openai-chat" and self.reply.finish)


def exchange_of(seen: Observed, started: float, expect: Expectation) -> Exchange:
    """The record of a finished observation, with times relative to `started`. `auxiliary` is settled by `classify`."""
    reply, facts = seen.reply, seen.facts
    partial = seen.ended in ("client_closed", "engine_closed", "error_event")
    since = _since(started)
    tokens = _tokens(seen, partial)
    return Exchange(
        index=seen.index,
        dialect=seen.dialect,
        method=seen.method,
        path=seen.path,
        status=seen.status,
        stream=facts.stream,
        auxiliary=seen.dialect is None or is_side_request(facts),
        model_asked=facts.model,
        model_answered=reply.model,
        request_bytes=len(seen.body),
        request_digest=seen.digest,
        response_bytes=seen.response_bytes,
        response_digest=seen.response_hash.hexdigest(),
        prefix_shared=seen.prefix_shared,
        duplicate_of=seen.duplicate_of,
        t_start=seen.t_start - started,
        t_request_end=seen.t_request_end - started,
        t_first_byte=since(seen.t_first_byte),
        t_first_token=since(reply.first_token if seen.streamed else None),
        t_first_answer=since(reply.first_answer if seen.streamed else None),
        t_last_token=since(reply.last_token if seen.streamed else None),
        t_end=seen.t_end - started,
        tokens=tokens,
        tokens_source=_source(seen, tokens),
        timings=engine_timings(reply.timings),
        finish_reason=reply.finish,
        cut_off=_cut_off(seen, tokens),
        output_cap=seen.cap,
        sampler=facts.sampler,
        calls=tuple(call.call() for call in reply.calls.values()),
        calls_textual=textual_calls("".join(reply.text), facts.tools),
        user_text_digest=_user_digest(facts) if seen.dialect else None,
        prompt_found=_prompt_found(facts, expect.prompt) if seen.dialect else None,
        tools=tuple(name for name in facts.tools if name),
        ended=seen.ended,
        error=seen.error,
        error_kind=kind_of_error(seen.status, seen.error) if seen.ended != "client_closed" else None,
        rewritten=seen.rewritten,
        partial=partial,
    )


def is_side_request(facts: RequestFacts) -> bool:
    """A request that by its own words makes a title or a summary, or that asks for a single token (a quota probe)."""
    return not facts.tools and (facts.output_cap == 1 or bool(SIDE_WORK.search(facts.system_text[:4000])))


def _since(started: float) -> Callable[[float | None], float | None]:
    return lambda at: None if at is None else at - started


def _tokens(seen: Observed, partial: bool) -> Tokens:
    """Counts as told. Of a reply that broke off, an output count that came before the end is not the whole truth."""
    if seen.dialect is None:
        return Tokens()
    tokens = tokens_of(seen.dialect, seen.reply)
    if not partial or seen.reply.finish or seen.reply.done:
        return tokens
    return Tokens(prompt_total=tokens.prompt_total, prompt_cached=tokens.prompt_cached, prompt_new=tokens.prompt_new)


def _source(seen: Observed, tokens: Tokens) -> Literal["usage", "timings"] | None:
    if tokens == Tokens() or seen.dialect is None:
        return None
    told = DIALECTS[seen.dialect].usage(seen.reply.usage)
    return "usage" if told.prompt_total is not None or told.output is not None else "timings"


def _cut_off(seen: Observed, tokens: Tokens) -> bool | None:
    """True by the finish reason or by a count equal to the cap; None where neither is known."""
    if seen.dialect is None:
        return None
    finish, output = seen.reply.finish, tokens.output
    if finish in DIALECTS[seen.dialect].cut_reasons:
        return True
    if output is not None and seen.cap and output >= seen.cap:
        return True
    return None if finish is None or (seen.cap and output is None and seen.dialect == "openai-responses") else False


def _user_digest(facts: RequestFacts) -> str:
    return digest_of("\n".join(facts.user_texts).encode(errors="surrogatepass"))


def _prompt_found(facts: RequestFacts, prompt: str | None) -> bool | None:
    """Whether the prompt stands in one piece in the user's texts; white space at its ends is the client's to trim."""
    wanted = (prompt or "").strip()
    return wanted in "\n".join(facts.user_texts) if wanted else None
