"""The engine's side: where it is, how a request is addressed to it, and the connections kept open to it.

It decides nothing about exchanges (`relay` does) and starts no engine.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.lab.errors import UsageError
from benchmarks.lab.meter.connection import Connection
from benchmarks.lab.meter.http1 import HEAD_LIMIT, Body, Headers, HttpError, end_to_end
from benchmarks.lab.model import Record

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0  # below the shortest keep-alive of the engines seen (llama.cpp, uvicorn and Node close after 5 s)


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
    prefix: bytes
    authority: bytes
    api_key: bytes | None

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
            prefix=parts.path.rstrip("/").removesuffix("/v1").encode(),
            authority=parts.netloc.rpartition("@")[2].encode(),
            api_key=upstream.api_key.encode() if upstream.api_key else None,
        )

    def headers(self, sent: Headers, length: int | None) -> Headers:
        """The client's headers as they go to the engine: own host, own key, the body's length."""
        keys = (b"authorization", b"x-api-key") if self.api_key else ()
        kept = [(b"host", self.authority), *end_to_end(sent, (b"host", b"content-length", *keys))]
        if length is not None:
            kept.append((b"content-length", b"%d" % length))
        if self.api_key:
            kept.append((b"authorization", b"Bearer " + self.api_key))
            if any(name == b"x-api-key" for name, _ in sent):
                kept.append((b"x-api-key", self.api_key))
        return kept


@dataclass(slots=True)
class Link:
    """A connection read message by message. `at`: when the last bytes came; `since`: this message's first."""

    connection: Connection
    buffer: bytes = b""
    at: float = 0.0
    since: float | None = None
    used: bool = False  # it has carried an exchange before
    idle_since: float = 0.0

    async def head(self) -> bytes | None:
        """The next head without its closing empty line; None if the connection ended before one began."""
        self.buffer = self.buffer.lstrip(b"\r\n")
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            if len(self.buffer) > HEAD_LIMIT:
                raise HttpError(f"a head longer than {HEAD_LIMIT} bytes")
            if not (data := await self.read()):
                if self.buffer:
                    raise HttpError("the connection ended inside a head")
                return None
            self.buffer += data
        head, self.buffer = self.buffer[:end], self.buffer[end + 4 :]
        return head

    async def read(self) -> bytes:
        """What arrives next; nothing: the other side has ended the connection."""
        self.at, data = await self.connection.receive()
        if self.since is None and data:
            self.since = self.at
        return data

    async def body(self, body: Body, limit: int) -> bytes | None:
        """All of a body; None if it is longer than `limit` bytes."""
        pieces = body.feed(self.buffer)
        size = sum(map(len, pieces))
        while not body.over:
            if not (data := await self.read()):
                raise HttpError("the connection ended inside a body")
            more = body.feed(data)
            pieces += more
            size += sum(map(len, more))
            if size > limit:
                return None
        self.buffer = body.rest
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def next_message(self) -> None:
        """Ready the link for another exchange."""
        self.used, self.since, self.idle_since = True, None, time.monotonic()


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
        return Link(connection)

    def keep(self, link: Link) -> None:
        """Take a connection back after a whole exchange."""
        link.next_message()
        self.idle.append(link)

    def close(self) -> None:
        """Close what is idle."""
        while self.idle:
            self.idle.pop().connection.abort()
