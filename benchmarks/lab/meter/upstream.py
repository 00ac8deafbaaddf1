"""The engine's side: where it is, how a request is addressed to it, and the connections kept open to it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from benchmarks.lab.errors import UsageError
from benchmarks.lab.meter.connection import Connection
from benchmarks.lab.model import Record

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0  # below the shortest keep-alive of the engines seen (llama.cpp, uvicorn and Node close after 5 s)
HEADER_LIMIT = 256 << 10  # bytes of a head; Codex sends large metadata headers

HOP_BY_HOP = frozenset(
    name.encode()
    for name in (
        "connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip

Headers = list[tuple[bytes, bytes]]
Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Upstream(Record, frozen=True, kw_only=True):
    """The engine's address. A `base_url` that ends in `/v1` means the same as without, as clients say `/v1` themselves.

    `api_key` replaces whatever key the client sends.
    """

    base_url: str
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """An `Upstream` taken apart."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    authority: bytes
    api_key: str | None

    @staticmethod
    def of(upstream: Upstream) -> Address:
        """Parse; UsageError where the URL is none."""
        parts = urlsplit(upstream.base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(f"base_url {upstream.base_url!r} is no address; write http://HOST:PORT.")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return Address(
            host=parts.hostname,
            port=port or (443 if tls else 80),
            tls=tls,
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            authority=parts.netloc.rpartition("@")[2].encode(),
            api_key=upstream.api_key,
        )

    def target(self, asked: bytes) -> bytes:
        """The request target at the engine."""
        return self.prefix.encode() + asked

    def headers(self, sent: Iterable[tuple[bytes, bytes]], length: int | None) -> Headers:
        """The client's headers as they go to the engine: own host, own key, the body's length."""
        dropped = {b"host", b"content-length"} | ({b"authorization", b"x-api-key"} if self.api_key else set())
        sent = list(sent)
        kept = end_to_end(sent, dropped)
        if length is not None:
            kept.append((b"content-length", b"%d" % length))
        if self.api_key:
            kept.append((b"authorization", f"Bearer {self.api_key}".encode()))
            if any(name == b"x-api-key" for name, _ in sent):
                kept.append((b"x-api-key", self.api_key.encode()))
        return [(b"host", self.authority), *kept]


@dataclass(slots=True)
class Link:
    """A connection with its HTTP state. `at`: when the bytes read last arrived; `since`: when a cycle's first did."""

    connection: Connection
    http: h11.Connection
    at: float = 0.0
    since: float | None = None
    used: bool = False  # it has carried an exchange before
    idle_since: float = 0.0

    @staticmethod
    def on(connection: Connection, role: type[h11.CLIENT] | type[h11.SERVER]) -> Link:
        """A link in `role` on a new connection."""
        return Link(connection, h11.Connection(role, max_incomplete_event_size=HEADER_LIMIT))

    async def next_event(self) -> Event:
        """The next HTTP event; h11.RemoteProtocolError where the other side breaks off or breaks the protocol."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.at, data = await self.connection.receive()
            if self.since is None:
                self.since = self.at
            self.http.receive_data(data)
        return event

    def send(self, event: h11.Event) -> None:
        """Write an HTTP event now."""
        self.connection.send(self.http.send(event) or b"")

    def next_cycle(self) -> bool:
        """Ready the link for another exchange; False if it cannot carry one."""
        if self.connection.gone or self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        self.used, self.since, self.idle_since = True, None, time.monotonic()
        return True


@dataclass(slots=True)
class Pool:
    """Connections to one engine, kept open between exchanges."""

    address: Address
    idle: list[Link] = field(default_factory=list)

    async def link(self) -> Link:
        """An idle connection that is surely still good, else a new one; OSError where there is no engine."""
        now = time.monotonic()
        while self.idle:
            link = self.idle.pop()
            if not link.connection.gone and now - link.idle_since < IDLE_SECONDS:
                return link
            link.connection.abort()
        return await self.fresh()

    async def fresh(self) -> Link:
        """A new connection."""
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(Connection, self.address.host, self.address.port, ssl=self.address.tls)
        _, connection = await asyncio.wait_for(opening, CONNECT_SECONDS)
        return Link.on(connection, h11.CLIENT)

    def keep(self, link: Link) -> None:
        """Take a connection back after its exchange, or close it if it cannot carry another."""
        if link.next_cycle():
            self.idle.append(link)
        else:
            link.connection.abort()

    def close(self) -> None:
        """Close what is idle."""
        while self.idle:
            self.idle.pop().connection.abort()


def end_to_end(headers: Iterable[tuple[bytes, bytes]], dropped: Iterable[bytes] = ()) -> Headers:
    """`headers` without those that concern one connection only, and without `dropped`."""
    headers = list(headers)
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    unwanted = HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in headers if name not in unwanted]
