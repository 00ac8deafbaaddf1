"""HTTP between one client connection and the engine: forward first, observe after.

Covers HTTP/1.0 and 1.1 with keep-alive, any method, chunked and counted bodies, `Expect: 100-continue`. Bodies pass
unchanged but for the declared rewrites of requests; a reply's bytes are passed on as they came, piece by piece, and
never run ahead of a slow client. A client that leaves cancels the engine's work at once; an engine that leaves is
passed on as a connection that ends early.
Does not cover HTTP/2 and upgrades: none of the clients and engines seen here needs them.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.lab.dialects import Rewrite, rewrite
from benchmarks.lab.meter import http1
from benchmarks.lab.meter.connection import Connection
from benchmarks.lab.meter.http1 import HttpError
from benchmarks.lab.meter.observe import Observed
from benchmarks.lab.meter.upstream import Link, Pool
from benchmarks.lab.model import ExchangeEnd

BODY_LIMIT = 64 << 20  # bytes of a request; agents were seen to send up to a few MB
STALE_SECONDS = 0.25  # a kept connection that breaks this soon was closed by the engine before it read anything
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REASONS = {400: b"Bad Request", 413: b"Content Too Large", 502: b"Bad Gateway", 503: b"Service Unavailable"}


class Witness(Protocol):
    """What the relay tells the trial."""

    closed: bool

    def begin(self, method: str, path: str, body: bytes, t_start: float, t_end: float) -> Observed:
        """A request has arrived whole."""
        ...

    def passed(self, seen: Observed, at: float) -> None:
        """Bytes of a reply went by."""
        ...

    def end(self, seen: Observed, at: float) -> None:
        """The exchange is over."""
        ...

    def refuse(self) -> None:
        """A request came after the trial's end."""
        ...

    def track(self, seen: Observed, cancel: Callable[[], None]) -> None:
        """How to break the exchange off when the trial ends."""
        ...


@dataclass(frozen=True, slots=True)
class Passage:
    """The two sides of one client connection, and who watches."""

    client: Link
    trial: Witness
    pool: Pool
    rewrites: Sequence[Rewrite]


@dataclass(frozen=True, slots=True)
class Question:
    """One request on its way: its head, its body as forwarded, and whether the client's connection goes on after it."""

    head: http1.Request
    body: bytes
    sent: bytes  # head and body as they go to the engine
    keep: bool


class EngineGoneError(Exception):
    """The engine broke off before its reply began, or began it with something else than HTTP."""


async def serve(connection: Connection, trial: Witness, pool: Pool, rewrites: Sequence[Rewrite]) -> None:
    """Carry every exchange of one client connection until either side ends it."""
    client = Link(connection)
    passage = Passage(client, trial, pool, rewrites)
    try:
        while await _exchange(passage):
            client.next_message()
    except HttpError as error:
        _refuse(client, 400, "bad_request", f"the client's request is no valid HTTP: {error}", keep=False)
    finally:
        connection.close()


async def _exchange(passage: Passage) -> bool:
    """One exchange; False when the client has left or its connection cannot go on."""
    client, trial = passage.client, passage.trial
    raw = await client.head()
    if raw is None:
        return False
    request = http1.parse_request(raw)
    body = await _body(client, request)
    keep = http1.keeps_open(request)
    if trial.closed:
        trial.refuse()
        _refuse(client, 503, "trial_over", "the trial has ended; this request was not passed on", keep=keep)
        return keep
    seen = trial.begin(
        request.method.decode(), request.target.decode("latin-1"), body or b"", client.since or client.at, client.at
    )
    try:
        if body is None:
            seen.ended, seen.status, seen.error = "refused", 413, f"a request longer than {BODY_LIMIT} bytes"
            _refuse(client, 413, "too_large", seen.error, keep=False)
            return False
        seen.ended = await _forward(passage, request, body, seen)
    finally:
        client.connection.on_gone = None
        trial.end(seen, time.monotonic())
    return keep and not client.connection.gone and not client.connection.closing


async def _body(client: Link, request: http1.Request) -> bytes | None:
    """The request's whole body; None if it is longer than the limit."""
    body = http1.request_body(request)
    if http1.has_token(request.headers, b"expect", b"100-continue") and not client.buffer and not body.over:
        client.connection.send(CONTINUE)
    return await client.body(body, BODY_LIMIT)


def _question(passage: Passage, request: http1.Request, body: bytes, seen: Observed) -> Question:
    """The request as it goes to the engine, after declared rewrites."""
    address = passage.pool.address
    if seen.dialect and passage.rewrites:
        body, seen.rewritten = rewrite(seen.dialect, body, passage.rewrites)
        seen.sent = body if seen.rewritten else None
    has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
    first = b"%s %s%s HTTP/1.1" % (request.method, address.prefix, request.target)
    head = http1.encode(first, address.headers(request.headers, len(body) if has_body else None))
    return Question(request, body, head + body, http1.keeps_open(request))


async def _forward(passage: Passage, request: http1.Request, body: bytes, seen: Observed) -> ExchangeEnd:
    """Ask the engine and relay its answer; says how the exchange ended."""
    question = _question(passage, request, body, seen)
    try:
        link, reply = await _ask(passage, question, seen)
    except (OSError, TimeoutError) as error:
        return _unreachable(passage, seen, error, question.keep)
    except EngineGoneError as error:
        return _engine_gone_early(passage.client, seen, str(error), question.keep)
    try:
        reusable = await _answer(passage, link, reply, question, seen)
    except HttpError as error:
        reusable = False
        _broken(passage.client.connection, seen, f"the engine's reply is no valid HTTP: {error}")
    passage.client.connection.on_gone = None
    if reusable:
        passage.pool.keep(link)
    else:
        link.connection.abort()
    return seen.ended


async def _ask(passage: Passage, question: Question, seen: Observed) -> tuple[Link, http1.Reply]:
    """Send the request and wait for the reply's head. A kept connection found stale is replaced once."""
    client, trial, pool = passage.client, passage.trial, passage.pool
    link = await pool.link()
    while True:
        client.connection.on_gone = link.connection.abort
        trial.track(seen, link.connection.abort)
        if client.connection.gone or trial.closed:
            link.connection.abort()
        sent_at = time.monotonic()
        link.connection.send(question.sent)
        try:
            return link, await _head(link)
        except HttpError as error:
            link.connection.abort()
            stale = link.used and link.since is None and time.monotonic() - sent_at < STALE_SECONDS
            if not stale or client.connection.gone or trial.closed:
                raise EngineGoneError(str(error)) from error
        link = await pool.fresh()


async def _head(link: Link) -> http1.Reply:
    while True:
        raw = await link.head()
        if raw is None:
            raise HttpError("the engine closed the connection without an answer")
        reply = http1.parse_reply(raw)
        if reply.status >= 200:
            return reply


async def _answer(passage: Passage, link: Link, reply: http1.Reply, question: Question, seen: Observed) -> bool:
    """Relay the reply as it comes and set how it ended; True if the engine's connection can carry another exchange."""
    client, trial = passage.client.connection, passage.trial
    seen.t_first_byte = link.since
    body = http1.reply_body(reply, question.head.method)
    plain = question.head.minor == 0 and isinstance(body, http1.Chunked)  # HTTP/1.0 knows no chunks
    closing = plain or not question.keep or isinstance(body, http1.UntilClose)
    seen.head(reply.status, reply.headers)
    head = _reply_head(reply, chunked=isinstance(body, http1.Chunked) and not plain, closing=closing)
    data = link.buffer
    while True:
        pieces = body.feed(data)
        client.send(head + (b"".join(pieces) if plain else data[: len(data) - len(body.rest)]))
        head = b""
        for piece in pieces:
            seen.piece(piece, link.at)
        trial.passed(seen, link.at)
        if body.over:
            break
        await client.drained()
        data = await link.read()
        if not data and not (body.closes() and not client.gone):
            _broken(client, seen, "the engine closed the connection in the middle of its reply")
            return False
    if closing:
        client.close()
    seen.ended, link.buffer = "complete", b""
    return http1.keeps_open(reply) and not body.rest and not link.connection.gone


def _broken(client: Connection, seen: Observed, why: str) -> None:
    """One side left in the middle of a reply. With the head gone out, an early end is the only honest sign."""
    if client.gone:
        seen.ended = "client_closed"
        return
    seen.ended, seen.error = "engine_closed", why
    client.close()


def _reply_head(reply: http1.Reply, *, chunked: bool, closing: bool) -> bytes:
    headers = http1.end_to_end(reply.headers)
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    headers.append((b"connection", b"close" if closing else b"keep-alive"))
    return http1.encode(b"HTTP/1.1 %d %s" % (reply.status, reply.reason), headers)


def _unreachable(passage: Passage, seen: Observed, error: Exception, keep: bool) -> ExchangeEnd:
    client = passage.client
    if client.connection.gone:
        return "client_closed"
    seen.status = 502
    seen.error = f"the engine at {passage.pool.address.authority.decode()} cannot be reached: {_reason(error)}"
    _refuse(client, 502, "engine_unreachable", seen.error, keep=keep)
    return "engine_unreachable"


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    return os.strerror(number) if number and number > 0 else str(error) or "no answer in time"


def _engine_gone_early(client: Link, seen: Observed, why: str, keep: bool) -> ExchangeEnd:
    if client.connection.gone:
        return "client_closed"
    seen.status = 502
    seen.error = why
    _refuse(client, 502, "engine_closed", seen.error, keep=keep)
    return "engine_closed"


def _refuse(client: Link, status: int, kind: str, message: str, *, keep: bool) -> None:
    """The meter's own answer, in a shape that clients of all dialects take for an error."""
    error = {"type": kind, "code": status, "message": f"local-lab meter: {message}"}
    body = json.dumps({"type": "error", "error": error}).encode()
    head = http1.encode(
        b"HTTP/1.1 %d %s" % (status, REASONS[status]),
        [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"keep-alive" if keep else b"close"),
        ],
    )
    client.connection.send(head + body)
    if not keep:
        client.connection.close()
