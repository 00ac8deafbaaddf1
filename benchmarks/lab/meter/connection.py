"""One TCP or TLS connection as the meter uses it: arrivals with their time, writes with backpressure, and its end.

Knows bytes only; HTTP is `relay`'s. Everything happens on the meter's event loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import cast

READ_AHEAD = 256 << 10  # unread bytes at which a connection stops reading, so that memory stays flat
NO_BYTES = b""


class Connection(asyncio.Protocol):
    """Bytes in both directions. `gone` is true once the other side has left or the connection broke.

    Half-closed peers count as gone: no client or engine seen here half-closes, and a cancel must be seen at once.
    """

    def __init__(self, on_made: Callable[[Connection], None] | None = None) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._arrived: deque[tuple[float, bytes]] = deque()
        self._unread = 0
        self._held = False
        self._reader: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)  # what asyncio gives to stream protocols
        # asyncio does so itself only for sockets made with proto=IPPROTO_TCP, which accepted ones rarely are; with
        # Nagle's algorithm a first token waits 40 ms for an acknowledgement.
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_made:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Keep what arrived, with the time it did."""
        self._arrived.append((time.monotonic(), data))
        self._unread += len(data)
        if self._unread > READ_AHEAD and self._transport and not self._held:
            self._held = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """The other side sends no more: treat it as gone, and let the transport close."""
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        del exc
        self._leave()

    def pause_writing(self) -> None:
        """The other side reads slower than we write."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The other side has caught up."""
        _wake(self._writable)
        self._writable = None

    # ---- called by the relay ----

    async def receive(self) -> tuple[float, bytes]:
        """The next bytes and the monotonic time they arrived; no bytes: nothing more will come."""
        while not self._arrived:
            if self.gone:
                return time.monotonic(), NO_BYTES
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        at, data = self._arrived.popleft()
        self._unread -= len(data)
        if self._held and self._unread < READ_AHEAD // 2 and self._transport:
            self._held = False
            self._transport.resume_reading()
        return at, data

    def send(self, data: bytes) -> None:
        """Write now, as far as the other side takes it; what it does not take is kept for it."""
        if self._transport and data and not self.gone:
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait while the other side is behind."""
        if self._writable is not None and not self.gone:
            await self._writable

    @property
    def closing(self) -> bool:
        """Whether `close` was called, or the connection is over."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close after what was written has gone out."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        if self._transport:
            self._transport.abort()
        self._leave()

    def _leave(self) -> None:
        if self.gone:
            return
        self.gone = True
        _wake(self._reader)
        _wake(self._writable)
        if self.on_gone:
            self.on_gone()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
