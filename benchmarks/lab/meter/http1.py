"""HTTP/1.1 messages as bytes (RFC 9112): heads, and where a body ends. Pure; no sockets.

Smaller than a general library on purpose: a pass-through needs heads and extents only, and each step here stands
between an engine's first token and its client (h11 took 0.3-0.9 ms of CPU per exchange on a busy two-core machine).
Tests compare it with h11 on random messages. Not covered: obsolete line folding (refused), trailers' meaning,
transfer codings other than chunked (refused).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

HEAD_LIMIT: Final = 256 << 10  # bytes of a head; Codex sends large metadata headers
LINE_LIMIT: Final = 16 << 10  # bytes of a chunk's size line or of a trailer

Headers = list[tuple[bytes, bytes]]  # names in lower case, in the order sent

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_REQUEST: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^\s\x00]+) HTTP/1\.([01])")
_REPLY: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\r\n\x00]*))?")
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,20})[ \t]*(?:;.*)?", re.DOTALL)


class HttpError(Exception):
    """The other side broke the protocol, or broke off."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head. `minor`: HTTP/1.0 or 1.1."""

    method: bytes
    target: bytes
    minor: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply's head."""

    status: int
    reason: bytes
    minor: int
    headers: Headers


def parse_request(head: bytes) -> Request:
    """A request's head, given without its closing empty line."""
    first, headers = _split(head)
    match = _REQUEST.fullmatch(first)
    if not match:
        raise HttpError("the first line is no HTTP/1 request")
    return Request(match[1], match[2], int(match[3]), headers)


def parse_reply(head: bytes) -> Reply:
    """A reply's head, given without its closing empty line."""
    first, headers = _split(head)
    match = _REPLY.fullmatch(first)
    if not match:
        raise HttpError("the first line is no HTTP/1 reply")
    return Reply(int(match[2]), match[3] or b"", int(match[1]), headers)


def encode(first: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head as bytes, closing empty line included."""
    return b"%s\r\n%s\r\n" % (first, b"".join([b"%s: %s\r\n" % header for header in headers]))


def value(headers: Headers, name: bytes) -> bytes:
    """The values of a header, joined; empty if it is not there."""
    return b",".join([content for key, content in headers if key == name])


def has_token(headers: Headers, name: bytes, token: bytes) -> bool:
    """Whether a header that is a comma-separated list holds `token`."""
    return any(part.strip().lower() == token for part in value(headers, name).split(b","))


def keeps_open(message: Request | Reply) -> bool:
    """Whether the sender means to keep its connection after this message."""
    if message.minor == 0:
        return has_token(message.headers, b"connection", b"keep-alive")
    return not has_token(message.headers, b"connection", b"close")


def end_to_end(headers: Headers, dropped: Iterable[bytes] = ()) -> Headers:
    """`headers` without those that concern one connection only, and without `dropped`."""
    named = {token.strip().lower() for token in value(headers, b"connection").split(b",")}
    unwanted = HOP_BY_HOP.union(named, dropped)
    return [header for header in headers if header[0] not in unwanted]


# ---- where a body ends ----


class Body(Protocol):
    """A body as it arrives. `over`: it has ended, and `rest` is what arrived behind it."""

    over: bool
    rest: bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the body in `data`; HttpError where it is broken."""
        ...

    def closes(self) -> bool:
        """The connection has ended: sets `over`, and says whether that was the body's end and not a break."""
        ...


@dataclass(slots=True)
class Counted:
    """A body of `left` bytes."""

    left: int
    over: bool = False
    rest: bytes = b""

    def __post_init__(self) -> None:
        self.over = self.left == 0

    def feed(self, data: bytes) -> list[bytes]:
        """The body's part of `data`."""
        piece = data[: self.left]
        self.left -= len(piece)
        if not self.left:
            self.over, self.rest = True, data[len(piece) :]
        return [piece] if piece else []

    def closes(self) -> bool:
        """A break if bytes are missing."""
        return self.over


@dataclass(slots=True)
class UntilClose:
    """A body that ends with its connection."""

    over: bool = False
    rest: bytes = b""

    def feed(self, data: bytes) -> list[bytes]:
        """All of it."""
        return [data] if data else []

    def closes(self) -> bool:
        """This is its end."""
        self.over = True
        return True


@dataclass(slots=True)
class Chunked:
    """A chunked body."""

    over: bool = False
    rest: bytes = b""
    _held: bytes = b""
    _left: int = 0  # of the chunk's data
    _closing: bool = False  # the CRLF behind a chunk's data comes next
    _trailers: bool = field(default=False)

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the chunks in `data`."""
        data = self._held + data if self._held else data
        at, pieces = 0, []
        while not self.over:
            if self._left:
                piece = data[at : at + self._left]
                if not piece:
                    break
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._closing = True
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > LINE_LIMIT:
                    raise HttpError("a chunk's size line is too long")
                break
            self._line(data[at:end])
            at = end + 2
        self._held, self.rest = (b"", data[at:]) if self.over else (data[at:], b"")
        return pieces

    def closes(self) -> bool:
        """A break if the last chunk did not come."""
        return self.over

    def _line(self, line: bytes) -> None:
        if self._closing:
            if line:
                raise HttpError("a chunk is longer than it says")
            self._closing = False
        elif self._trailers:
            self.over = not line
        else:
            size = _SIZE.fullmatch(line)
            if not size:
                raise HttpError("a chunk without a size")
            self._left = int(size[1], 16)
            self._trailers = self._left == 0


def request_body(request: Request) -> Body:
    """The extent of a request's body; without a length it has none."""
    return _coded(request.headers) or Counted(_length(request.headers) or 0)


def reply_body(reply: Reply, method: bytes) -> Body:
    """The extent of the body of a reply to `method`."""
    if method == b"HEAD" or reply.status in (204, 304):
        return Counted(0)
    if coded := _coded(reply.headers):
        return coded
    length = _length(reply.headers)
    return UntilClose() if length is None else Counted(length)


def _coded(headers: Headers) -> Chunked | None:
    coding = value(headers, b"transfer-encoding").strip().lower()
    if not coding:
        return None
    if coding != b"chunked":
        raise HttpError("a transfer coding other than chunked")
    return Chunked()


def _length(headers: Headers) -> int | None:
    told = {content.strip() for content in value(headers, b"content-length").split(b",")} - {b""}
    if not told:
        return None
    length = told.pop()
    if told or not length.isdigit() or len(length) > 18:
        raise HttpError("a content-length that is no number")
    return int(length)


def _split(head: bytes) -> tuple[bytes, Headers]:
    first, *lines = head.split(b"\r\n")
    headers: Headers = []
    for line in lines:
        name, colon, content = line.partition(b":")
        name = name.lower()
        if not colon or not _NAME.fullmatch(name) or b"\n" in content or b"\0" in content:
            raise HttpError("a header line that is none")
        headers.append((name, content.strip(b" \t")))
    return first, headers
