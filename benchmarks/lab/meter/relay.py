"""HTTP between one client connection and the engine: forward first, observe after.

Covers HTTP/1.0 and 1.1 with keep-alive, any method, chunked and counted bodies, `Expect: 100-continue`. Bodies pass
unchanged but for the declared rewrites; streams are flushed piece by piece and never run ahead of a slow client.
A client that leaves cancels the engine's work at once; an engine that leaves is passed on as a broken connection.
Does not cover HTTP/2, upgrades and trailers: none of the clients and engines seen here needs them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import h11

from benchmarks.lab.dialects import Rewrite, dialect_of, rewrite
from benchmarks.lab.meter.connection import Connection
from benchmarks.lab.meter.observe import Ended, Observed
from benchmarks.lab.meter.upstream import Headers, Link, Pool, end_to_end

BODY_LIMIT = 64 << 20  # bytes of a request; agents were seen to send up to a few MB
STALE_SECONDS = 0.25  # a kept connection that breaks this soon was closed by the engine before it read anything


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


class EngineGoneError(Exception):
    """The engine broke the connection off."""


async def serve(connection: Connection, trial: Witness, pool: Pool, rewrites: Sequence[Rewrite]) -> None:
    """Carry every exchange of one client connection until either side ends it."""
    client = Link.on(connection, h11.SERVER)
    passage = Passage(client, trial, pool, rewrites)
    try:
        while await _exchange(passage) and client.next_cycle():
            pass
    except h11.RemoteProtocolError as error:
        _refuse(client, error.error_status_hint, "bad_request", f"the client's request is no valid HTTP: {error}")
    finally:
        connection.close()


async def _exchange(passage: Passage) -> bool:
    """One exchange; False when the client has left or its connection cannot go on."""
    client, trial = passage.client, passage.trial
    request = await client.next_event()
    if not isinstance(request, h11.Request):
        return False
    body = await _body(client)
    if trial.closed:
        trial.refuse()
        _refuse(client, 503, "trial_over", "the trial has ended; this request was not passed on")
        return True
    method, path = request.method.decode(), request.target.decode()
    if body is None:
        seen = trial.begin(method, path, b"", client.since or client.at, client.at)
        seen.ended, seen.status, seen.error = "refused", 413, f"request longer than {BODY_LIMIT} bytes"
        _refuse(client, 413, "too_large", seen.error)
        trial.end(seen, time.monotonic())
        return False
    seen = trial.begin(method, path, body, client.since or client.at, client.at)
    try:
        seen.ended = await _forward(passage, request, seen)
    finally:
        client.connection.on_gone = None
        trial.end(seen, time.monotonic())
    return seen.ended == "complete" or client.http.our_state is h11.DONE


async def _body(client: Link) -> bytes | None:
    """The request's whole body; None if it is longer than the limit."""
    pieces: list[bytes] = []
    size = 0
    while isinstance(event := await client.next_event(), h11.Data):
        size += len(event.data)
        if size > BODY_LIMIT:
            return None
        pieces.append(bytes(event.data))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _forward(passage: Passage, request: h11.Request, seen: Observed) -> Ended:
    """Ask the engine and relay its answer; says how the exchange ended."""
    client, pool, rewrites = passage.client, passage.pool, passage.rewrites
    body = seen.body
    dialect = dialect_of(seen.method, seen.path) if rewrites else None
    if dialect:
        body, seen.rewritten = rewrite(dialect, body, rewrites)
        seen.sent = body if seen.rewritten else None
    counted = bool(body) or any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
    headers = pool.address.headers(request.headers, len(body) if counted else None)
    asked = h11.Request(method=request.method, target=pool.address.target(request.target), headers=headers)
    try:
        link, response = await _ask(passage, asked, body, seen)
    except (OSError, TimeoutError) as error:
        return _unreachable(client, seen, pool, error)
    except EngineGoneError:
        return _engine_gone_early(client, seen)
    try:
        return await _answer(passage, link, response, seen)
    finally:
        client.connection.on_gone = None
        pool.keep(link)


async def _ask(passage: Passage, request: h11.Request, body: bytes, seen: Observed) -> tuple[Link, h11.Response]:
    """Send the request and wait for the reply's head. A kept connection found stale is replaced once."""
    client, trial, pool = passage.client, passage.trial, passage.pool
    link = await pool.link()
    while True:
        cancel = link.connection.abort
        client.connection.on_gone = cancel
        trial.track(seen, cancel)
        if client.connection.gone:
            cancel()
        link.since = None
        sent_at = time.monotonic()
        link.send(request)
        if body:
            link.send(h11.Data(data=body))
        link.send(h11.EndOfMessage())
        try:
            return link, await _head(link)
        except h11.RemoteProtocolError as error:
            link.connection.abort()
            fresh = not link.used or time.monotonic() - sent_at > STALE_SECONDS
            if fresh or client.connection.gone or trial.closed:
                raise EngineGoneError from error
        link = await pool.fresh()


async def _head(link: Link) -> h11.Response:
    while True:
        event = await link.next_event()
        if isinstance(event, h11.Response):
            return event
        if not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the engine closed the connection without an answer")


async def _answer(passage: Passage, link: Link, response: h11.Response, seen: Observed) -> Ended:
    """Relay the reply as it comes."""
    client, trial = passage.client, passage.trial
    seen.t_first_byte = link.since
    headers: Headers = end_to_end(response.headers)
    client.send(h11.Response(status_code=response.status_code, reason=response.reason, headers=headers))
    seen.head(response.status_code, headers)
    try:
        while isinstance(event := await link.next_event(), h11.Data):
            client.send(event)
            seen.piece(event.data, link.at)
            trial.passed(seen, link.at)
            await client.connection.drained()
    except h11.RemoteProtocolError:
        if client.connection.gone:
            return "client_closed"
        # The head is out, so the only honest sign is a connection that ends before its reply does.
        seen.error = "the engine closed the connection in the middle of its reply"
        client.connection.close()
        return "engine_closed"
    if client.connection.gone:
        return "client_closed"
    client.send(h11.EndOfMessage())
    return "complete"


def _unreachable(client: Link, seen: Observed, pool: Pool, error: Exception) -> Ended:
    if client.connection.gone:
        return "client_closed"
    seen.status = 502
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "no answer in time"
    seen.error = f"the engine at {pool.address.authority.decode()} cannot be reached: {reason}"
    _refuse(client, 502, "engine_unreachable", seen.error)
    return "engine_unreachable"


def _engine_gone_early(client: Link, seen: Observed) -> Ended:
    if client.connection.gone:
        return "client_closed"
    seen.status = 502
    seen.error = "the engine closed the connection without an answer"
    _refuse(client, 502, "engine_closed", seen.error)
    return "engine_closed"


def _refuse(client: Link, status: int, kind: str, message: str) -> None:
    """The meter's own answer, in a shape that clients of all dialects take for an error."""
    if client.connection.gone or client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    error = {"type": kind, "code": status, "message": f"local-lab meter: {message}"}
    body = json.dumps({"type": "error", "error": error}).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    client.send(h11.Response(status_code=status, headers=headers))
    client.send(h11.Data(data=body))
    client.send(h11.EndOfMessage())
