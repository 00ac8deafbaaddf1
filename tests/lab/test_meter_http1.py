"""The meter's own HTTP/1.1 reading, compared with h11 on the same bytes."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab.meter import http1
from benchmarks.lab.meter.http1 import Chunked, Counted, HttpError, UntilClose

BODIES = st.lists(st.binary(min_size=1, max_size=300), max_size=6)
CUTS = st.lists(st.integers(0, 2000), max_size=8)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
HEADERS = st.dictionaries(st.sampled_from(["X-One", "accept", "User-Agent", "x-two"]), VALUES, max_size=4)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(body: http1.Body, pieces: list[bytes]) -> bytes:
    """The body in `pieces`; what follows it is left in `rest`."""
    got, behind = [], b""
    for piece in pieces:
        if body.over:
            behind += piece
        else:
            got += body.feed(piece)
    body.rest += behind
    return b"".join(got)


@given(HEADERS, BODIES, st.booleans(), CUTS)
def test_replies_that_h11_writes_are_read_alike(
    headers: dict[str, str], body: list[bytes], counted: bool, cuts: list[int]
) -> None:
    peer = h11.Connection(h11.SERVER)
    peer.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while not isinstance(peer.next_event(), h11.EndOfMessage):
        pass
    length = [("Content-Length", str(sum(map(len, body))))] if counted else []
    told = h11.Response(status_code=200, headers=[*headers.items(), *length], reason=b"Fine")
    wire = b"".join(
        peer.send(event) or b"" for event in [told, *(h11.Data(data=piece) for piece in body), h11.EndOfMessage()]
    )
    head, _, rest = wire.partition(b"\r\n\r\n")
    reply = http1.parse_reply(head)
    extent = http1.reply_body(reply, b"GET")
    assert (reply.status, reply.reason, reply.minor) == (200, b"Fine", 1)
    assert [h for h in reply.headers if h[0] != b"transfer-encoding"] == list(told.headers)
    assert read(extent, cut(rest, cuts)) == b"".join(body)
    assert (extent.over, extent.rest) == (True, b"")


@given(HEADERS, BODIES, CUTS)
def test_requests_that_h11_writes_are_read_alike(headers: dict[str, str], body: list[bytes], cuts: list[int]) -> None:
    peer = h11.Connection(h11.CLIENT)
    told = h11.Request(
        method="POST", target="/v1/x?y=1", headers=[("Host", "a"), ("Transfer-Encoding", "chunked"), *headers.items()]
    )
    wire = b"".join(
        peer.send(event) or b"" for event in [told, *(h11.Data(data=piece) for piece in body), h11.EndOfMessage()]
    )
    head, _, rest = wire.partition(b"\r\n\r\n")
    request = http1.parse_request(head)
    extent = http1.request_body(request)
    assert (request.method, request.target, request.headers) == (b"POST", b"/v1/x?y=1", list(told.headers))
    assert read(extent, cut(rest + b"NEXT", cuts)) == b"".join(body)
    assert (extent.over, extent.rest) == (True, b"NEXT")


@given(st.binary(max_size=80), CUTS)
def test_broken_chunks_come_out_alike_however_they_arrive(data: bytes, cuts: list[int]) -> None:
    assert outcome(cut(data, cuts)) == outcome([data])


def outcome(pieces: list[bytes]) -> tuple[bytes, bool, bytes] | None:
    """Payload, whether the end was seen, and what lies behind it; None where the chunks are refused."""
    body = Chunked()
    try:
        payload = read(body, pieces)
    except HttpError:
        return None
    return payload, body.over, body.rest


@given(
    st.lists(
        st.sampled_from([b"5\r\n", b"hello", b"\r\n", b"0\r\n", b"\r\n\r\n", b"A;x=y\r\n", b"0123456789", b"zz"]),
        max_size=12,
    ),
    CUTS,
)
def test_chunk_sequences_end_where_h11_says(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    expected, ended, broken = b"", False, False
    try:
        while (event := peer.next_event()) not in (h11.NEED_DATA, h11.PAUSED) and not ended:
            expected += bytes(event.data) if isinstance(event, h11.Data) else b""
            ended = isinstance(event, h11.EndOfMessage)
    except h11.RemoteProtocolError:
        broken = True
    body = Chunked()
    try:
        got = read(body, cut(data, cuts))
    except HttpError:
        assert broken
        return
    # h11 asks more of trailers than we need to; a body it reads to the end must be the same here.
    assert broken or (got, body.over) == (expected, ended)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /",
        b"GET / HTTP/2",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\n folded: x",
        b"GET / HTTP/1.1\r\nA: b\nC: d",
    ],
)
def test_heads_that_are_none_are_refused(head: bytes) -> None:
    with pytest.raises(HttpError):
        http1.parse_request(head)


@pytest.mark.parametrize("length", [b"x", b"-1", b"1, 2", b"1_0", b"+3"])
def test_lengths_that_are_no_number_are_refused(length: bytes) -> None:
    with pytest.raises(HttpError):
        http1.request_body(http1.Request(b"POST", b"/", 1, [(b"content-length", length)]))


def test_replies_without_a_body_have_none() -> None:
    headers = [(b"content-length", b"5")]
    assert http1.reply_body(http1.Reply(200, b"", 1, headers), b"HEAD").over
    assert http1.reply_body(http1.Reply(204, b"", 1, headers), b"GET").over
    assert http1.reply_body(http1.Reply(304, b"", 1, headers), b"GET").over
    assert isinstance(http1.reply_body(http1.Reply(200, b"", 1, []), b"GET"), UntilClose)
    assert isinstance(http1.reply_body(http1.Reply(200, b"", 1, headers), b"GET"), Counted)


def test_headers_of_one_connection_are_not_passed_on() -> None:
    sent = [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"te", b"trailers"), (b"accept", b"*/*")]
    assert http1.end_to_end(sent) == [(b"accept", b"*/*")]


@pytest.mark.parametrize(
    ("minor", "connection", "keep"), [(1, b"", True), (1, b"Close", False), (0, b"", False), (0, b"Keep-Alive", True)]
)
def test_who_keeps_a_connection_open(minor: int, connection: bytes, keep: bool) -> None:
    headers = [(b"connection", connection)] if connection else []
    assert http1.keeps_open(http1.Request(b"GET", b"/", minor, headers)) is keep
