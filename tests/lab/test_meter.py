"""The meter on the wire: what passes unchanged, what is recorded, and what happens when either side leaves."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.dialects import Rewrite
from benchmarks.lab.meter import Expectation, Meter, MeterTrial, Upstream
from benchmarks.lab.model import Exchange, Tokens

CHAT = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENCE = 20.0


@dataclass
class Asked:
    """A request as the engine got it."""

    line: str
    headers: dict[str, str]
    body: bytes


Play = Callable[[socket.socket, Asked], None]


@dataclass
class FakeEngine:
    """An engine on loopback that plays `play` for each request; it notices when its client hangs up."""

    play: Play
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    hung_up: threading.Event = field(default_factory=threading.Event)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while asked := read_asked(reader):
                self.asked.append(asked)
                try:
                    self.play(connection, asked)
                except OSError:
                    self.hung_up.set()
                    return
                if connection.fileno() < 0:
                    return

    def watch(self, connection: socket.socket) -> None:
        """Block until the other side hangs up, and note it."""
        connection.settimeout(PATIENCE)
        try:
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass
        self.hung_up.set()


def read_asked(reader: Any) -> Asked | None:
    line = reader.readline().decode().strip()
    if not line:
        return None
    headers: dict[str, str] = {}
    while (row := reader.readline().decode().strip()) != "":
        name, _, value = row.partition(":")
        headers[name.lower()] = value.strip()
    return Asked(line, headers, reader.read(int(headers.get("content-length", 0))))


@contextmanager
def engine_playing(play: Play) -> Iterator[FakeEngine]:
    engine = FakeEngine(play)
    threading.Thread(target=engine.run, daemon=True).start()
    try:
        yield engine
    finally:
        engine.listener.close()


@dataclass
class Bench:
    """A meter in front of an engine, one open trial, and a client's port."""

    trial: MeterTrial
    port: int
    meter: Meter

    def client(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def post(self, body: bytes, path: str = CHAT, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = self.client()
        connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        return reply.status, data


@contextmanager
def bench(
    url: str,
    *,
    expect: Expectation | None = None,
    rewrites: tuple[Rewrite, ...] = (),
    evidence: Path | None = None,
    api_key: str | None = None,
) -> Iterator[Bench]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with Meter(Upstream(base_url=url, api_key=api_key), rewrites) as meter:
            trial = meter.open_trial("t1", listener, expect, evidence)
            yield Bench(trial, listener.getsockname()[1], meter)


def whole(body: bytes, content_type: str = "application/json", extra: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def data_line(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return data_line({"model": "m", "choices": [{"index": 0, "delta": fields}]})


FINISH = data_line({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE = data_line({"model": "m", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 2}})
DONE = b"data: [DONE]\n\n"
CHAT_STREAM = delta(role="assistant") + delta(content="h\u00e9") + delta(content="llo") + FINISH + USAGE + DONE


def playing_stream(stream: bytes, piece: int = 7) -> Play:
    """Send `stream` in pieces of `piece` bytes, so that splits fall inside characters and field names."""

    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD)
        for start in range(0, len(stream), piece):
            connection.sendall(chunk(stream[start : start + piece]))
        connection.sendall(chunk(b""))

    return play


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something another thread does; it is an error if it never comes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def only(exchanges: tuple[Exchange, ...]) -> Exchange:
    assert len(exchanges) == 1
    return exchanges[0]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- bytes ----


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_case_18_a_stream_passes_byte_for_byte_and_is_counted(piece: int) -> None:
    with engine_playing(playing_stream(CHAT_STREAM, piece)) as engine, bench(engine.url) as b:
        body = chat_body(stream=True)
        status, got = b.post(body)
        seen = only(b.trial.close())
    assert (status, got, engine.asked[0].body) == (200, CHAT_STREAM, body)
    assert (seen.request_digest, seen.response_digest) == (digest(body), digest(CHAT_STREAM))
    assert (seen.request_bytes, seen.response_bytes) == (len(body), len(CHAT_STREAM))
    assert seen.tokens == Tokens(prompt_total=12, output=2)
    assert (seen.ended, seen.finish_reason, seen.partial, seen.tokens_source) == ("complete", "stop", False, "usage")


def test_odd_bytes_pass_both_ways_unchanged() -> None:
    odd = bytes(range(256)) * 300
    with engine_playing(lambda c, a: c.sendall(whole(a.body[::-1]))) as engine, bench(engine.url) as b:
        status, got = b.post(odd)
        seen = only(b.trial.close())
    assert engine.asked[0].body == odd
    assert (status, got) == (200, odd[::-1])
    assert seen.request_digest == digest(odd)
    assert seen.response_digest == digest(odd[::-1])
    assert seen.tokens == Tokens()
