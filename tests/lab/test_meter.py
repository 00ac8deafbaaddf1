"""The meter on the wire: what passes unchanged, what is recorded, and what happens when either side leaves."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.lab.dialects import Rewrite
from benchmarks.lab.errors import UsageError
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
    try:
        line = reader.readline().decode().strip()
    except ConnectionError:
        return None
    if not line:
        return None
    headers: dict[str, str] = {}
    while (row := reader.readline().decode().strip()) != "":
        name, _, value = row.partition(":")
        headers[name.lower()] = ", ".join(filter(None, (headers.get(name.lower()), value.strip())))
    return Asked(line, headers, reader.read(int(headers.get("content-length", 0))))


def hang_up(connection: socket.socket) -> None:
    """End the connection at once, though a reader still holds it."""
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()


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
    upstream = Upstream(base_url=url, api_key=api_key)
    with socket.create_server(("127.0.0.1", 0)) as listener, Meter(upstream, rewrites) as meter:
        trial = meter.open_trial("t1", listener, expect, evidence)
        yield Bench(trial, listener.getsockname()[1], meter)


def whole(body: bytes, content_type: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


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


def test_a_client_that_cannot_chunk_gets_the_same_body() -> None:
    with engine_playing(playing_stream(CHAT_STREAM)) as engine, bench(engine.url) as b:
        body = chat_body(stream=True)
        with socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE) as client:
            client.sendall(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
            got = b"".join(iter(lambda: client.recv(4096), b""))
    assert got.partition(b"\r\n\r\n")[2] == CHAT_STREAM


def test_a_reply_that_ends_with_its_connection_is_whole() -> None:
    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + CHAT_STREAM)
        hang_up(connection)

    with engine_playing(play) as engine, bench(engine.url) as b:
        assert b.post(chat_body(stream=True)) == (200, CHAT_STREAM)
        assert only(b.trial.close()).ended == "complete"


def test_a_chunked_request_reaches_the_engine_whole() -> None:
    with engine_playing(lambda c, a: c.sendall(whole(a.body))) as engine, bench(engine.url) as b:
        connection = b.client()
        connection.request("POST", CHAT, iter([b"one", b"two"]), encode_chunked=True)
        assert connection.getresponse().read() == b"onetwo"
        connection.close()
    assert engine.asked[0].headers["content-length"] == "6"


def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    head = b"POST %s HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n" % CHAT.encode()
    with (
        engine_playing(lambda c, a: c.sendall(whole(a.body))) as engine,
        bench(engine.url) as b,
        socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE) as client,
    ):
        client.sendall(head)
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    assert engine.asked[0].body == b"body"
    assert "expect" not in engine.asked[0].headers


def test_calls_that_are_no_model_calls_pass_and_are_marked() -> None:
    models = b'{"data": [{"id": "m"}]}'

    def play(connection: socket.socket, asked: Asked) -> None:
        answer = whole(models)
        connection.sendall(answer[: -len(models)] if asked.line.startswith("HEAD") else answer)

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        for method in ("GET", "HEAD", "GET"):
            client.request(method, "/v1/models")
            assert client.getresponse().read() == (b"" if method == "HEAD" else models)
        client.close()
        seen = b.trial.close()
    assert [(e.dialect, e.auxiliary, e.method, e.tokens) for e in seen] == [
        (None, True, method, Tokens()) for method in ("GET", "HEAD", "GET")
    ]


def test_the_clients_key_is_replaced_by_the_engines() -> None:
    keys = {"Authorization": "Bearer dummy", "x-api-key": "dummy"}
    for api_key, expected in (("real", ("Bearer real", "real")), (None, ("Bearer dummy", "dummy"))):
        with engine_playing(lambda c, a: c.sendall(whole(b"{}"))) as engine, bench(engine.url, api_key=api_key) as b:
            b.post(chat_body(), headers=keys)
        asked = engine.asked[0]
        assert (asked.headers["authorization"], asked.headers["x-api-key"]) == expected
        assert asked.headers["host"].startswith("127.0.0.1:")


@pytest.mark.parametrize(("suffix", "path"), [("", CHAT), ("/v1", CHAT), ("/v1/", CHAT), ("/api", f"/api{CHAT}")])
def test_a_base_url_may_end_in_v1(suffix: str, path: str) -> None:
    with engine_playing(lambda c, a: c.sendall(whole(b"{}"))) as engine, bench(engine.url + suffix) as b:
        b.post(chat_body())
    assert engine.asked[0].line == f"POST {path} HTTP/1.1"


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:port"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="base_url"):
        Meter(Upstream(base_url=url))


def test_the_engines_connection_is_used_again() -> None:
    with engine_playing(lambda c, a: c.sendall(whole(b"{}"))) as engine, bench(engine.url) as b:
        for _ in range(3):
            b.post(chat_body())
    assert (engine.connections, len(engine.asked)) == (1, 3)


def test_a_connection_the_engine_closed_meanwhile_is_replaced_once() -> None:
    """The engine closes its kept connection in the very moment the next request arrives on it."""

    def play(connection: socket.socket, asked: Asked) -> None:
        if len(engine.asked) == 2:
            hang_up(connection)
        else:
            connection.sendall(whole(b"{}"))

    with engine_playing(play) as engine, bench(engine.url) as b:
        assert [b.post(chat_body(n=n))[0] for n in range(2)] == [200, 200]
        assert [e.ended for e in b.trial.close()] == ["complete", "complete"]
    assert engine.connections == 2


def test_what_is_no_http_is_answered_400() -> None:
    with engine_playing(lambda c, a: None) as engine, bench(engine.url) as b:
        with socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE) as client:
            client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 400")
        assert b.trial.close() == ()
    assert engine.asked == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_reply_passes_as_it_is_and_is_read(encoding: str) -> None:
    packed = gzip.compress(CHAT_STREAM) if encoding == "gzip" else zlib.compress(CHAT_STREAM)
    reply = whole(packed, "text/event-stream", f"Content-Encoding: {encoding}\r\n")
    with engine_playing(lambda c, a: c.sendall(reply)) as engine, bench(engine.url) as b:
        assert b.post(chat_body(stream=True)) == (200, packed)
        seen = only(b.trial.close())
    assert (seen.response_digest, seen.tokens) == (digest(packed), Tokens(prompt_total=12, output=2))


def test_a_reply_in_a_coding_nobody_here_knows_passes_and_stays_unknown() -> None:
    packed = b"not really brotli"
    reply = whole(packed, "text/event-stream", "Content-Encoding: br\r\n")
    with engine_playing(lambda c, a: c.sendall(reply)) as engine, bench(engine.url) as b:
        assert b.post(chat_body(stream=True)) == (200, packed)
        seen = only(b.trial.close())
    assert (seen.tokens, seen.ended, seen.tokens_source) == (Tokens(), "complete", None)


# ---- how streams end ----


def test_case_18_comments_and_crlf_are_metered_right() -> None:
    stream = (b": processing\n\n" + CHAT_STREAM).replace(b"\n", b"\r\n")
    with engine_playing(playing_stream(stream, 5)) as engine, bench(engine.url) as b:
        assert b.post(chat_body(stream=True))[1] == stream
        seen = only(b.trial.close())
    assert (seen.tokens.output, seen.ended) == (2, "complete")
    assert seen.t_first_byte is not None
    assert seen.t_first_token is not None
    assert seen.t_first_byte <= seen.t_first_token


def test_case_18_an_error_inside_a_stream_is_the_exchanges_end() -> None:
    stream = delta(content="a") + b'event: error\ndata: {"error": {"message": "context size exceeded"}}\n\n'
    with engine_playing(playing_stream(stream)) as engine, bench(engine.url) as b:
        assert b.post(chat_body(stream=True)) == (200, stream)
        seen = only(b.trial.close())
    assert (seen.ended, seen.error, seen.partial) == ("error_event", "context size exceeded", True)


def test_case_18_a_stream_without_its_closing_event_is_cut() -> None:
    with engine_playing(playing_stream(delta(content="a"))) as engine, bench(engine.url) as b:
        b.post(chat_body(stream=True))
        seen = only(b.trial.close())
    assert (seen.ended, seen.partial, seen.tokens.output) == ("engine_closed", True, None)


def test_case_18_a_stream_with_a_finish_reason_but_without_done_is_whole() -> None:
    with engine_playing(playing_stream(delta(content="a") + FINISH)) as engine, bench(engine.url) as b:
        b.post(chat_body(stream=True))
        assert only(b.trial.close()).ended == "complete"


def test_an_engine_that_dies_in_mid_stream_is_passed_on_as_a_broken_connection() -> None:
    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD + chunk(delta(content="a")))
        hang_up(connection)

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", CHAT, chat_body(stream=True))
        with pytest.raises(http.client.IncompleteRead) as broken:
            client.getresponse().read()
        seen = only(b.trial.close())
    assert broken.value.partial == delta(content="a")
    assert (seen.ended, seen.partial) == ("engine_closed", True)


def test_an_engine_that_hangs_up_without_an_answer_is_a_502_that_says_so() -> None:
    with engine_playing(lambda c, a: hang_up(c)) as engine, bench(engine.url) as b:
        status, data = b.post(chat_body())
        seen = only(b.trial.close())
    assert (status, seen.ended, seen.status) == (502, "engine_closed", 502)
    assert b"without an answer" in data


def test_case_04_an_engine_that_is_not_there_is_a_502_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with bench(f"http://127.0.0.1:{port}") as b:
        status, data = b.post(chat_body())
        wait_for(lambda: b.trial.live().open == 0)
        turns = b.trial.live().turns
        seen = only(b.trial.close())
    assert (status, seen.ended, seen.error_kind, turns) == (502, "engine_unreachable", "other", 0)
    assert f"127.0.0.1:{port} cannot be reached: Connection refused" in json.loads(data)["error"]["message"]


def test_an_engine_that_speaks_no_tls_is_named_in_tls_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=lambda: plain.accept()[0].sendall(b"HTTP/1.1 400 Bad\r\n\r\n"), daemon=True).start()
        with bench(f"https://127.0.0.1:{plain.getsockname()[1]}") as b:
            status, data = b.post(chat_body())
            assert only(b.trial.close()).ended == "engine_unreachable"
    assert status == 502
    assert "SSL" in json.loads(data)["error"]["message"]


# ---- a client that leaves ----


def test_a_client_that_leaves_in_mid_stream_cancels_the_engine_at_once() -> None:
    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD + chunk(delta(content="a")))
        engine.watch(connection)

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", CHAT, chat_body(stream=True))
        reply = client.getresponse()
        assert reply.read(5) == delta(content="a")[:5]
        wait_for(lambda: b.trial.live().output == 1)
        reply.close()
        client.close()
        assert engine.hung_up.wait(PATIENCE)
        wait_for(lambda: b.trial.live().open == 0)
        seen = only(b.trial.close())
    assert (seen.ended, seen.partial, seen.tokens, seen.finish_reason) == ("client_closed", True, Tokens(), None)
    assert seen.t_first_token is not None


def test_what_an_engine_told_before_the_client_left_is_kept() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 30, "output_tokens": 1}}}

    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD + chunk(data_line(start)))
        engine.watch(connection)

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", "/v1/messages", chat_body(stream=True, max_tokens=9))
        reply = client.getresponse()
        reply.read(20)
        reply.close()
        client.close()
        wait_for(lambda: b.trial.live().open == 0)
        assert only(b.trial.close()).tokens == Tokens(prompt_total=30)


def test_a_client_that_hangs_up_on_done_has_its_whole_reply() -> None:
    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD + chunk(CHAT_STREAM))
        engine.watch(connection)

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", CHAT, chat_body(stream=True))
        reply = client.getresponse()
        assert reply.read(len(CHAT_STREAM)) == CHAT_STREAM
        reply.close()
        client.close()
        wait_for(lambda: b.trial.live().open == 0)
        seen = only(b.trial.close())
    assert (seen.ended, seen.partial, seen.tokens.output) == ("complete", False, 2)


def test_an_exchange_that_cannot_be_broken_off_is_a_fault_of_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD + chunk(delta(content="a")))
        engine.watch(connection)

    monkeypatch.setattr(MeterTrial, "track", lambda trial, seen, cancel: None)
    monkeypatch.setattr("benchmarks.lab.meter.trial.CLOSE_SECONDS", 0.05)
    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", CHAT, chat_body(stream=True))
        wait_for(lambda: b.trial.live().output == 1)
        assert b.trial.close() == ()
        assert b.trial.faults() == ("exchange 0 could not be broken off within 0.05 s",)


def impatient_client(b: Bench, engine: FakeEngine, body: bytes) -> None:
    """Send a request and leave while the engine reads it."""
    client = b.client()
    client.request("POST", CHAT, body)
    wait_for(lambda: len(engine.asked) == 1)
    client.close()


def silent_first(connection: socket.socket, asked: Asked, engine: FakeEngine) -> None:
    """Read the first request for ever; answer the others."""
    if len(engine.asked) == 1:
        engine.watch(connection)
    else:
        connection.sendall(whole(b'{"choices": [], "model": "m"}'))


@pytest.mark.parametrize("name", ["case_23", "B13", "B20"])
def test_case_23_B13_B20_a_request_sent_again_while_it_was_being_read_is_a_retry(name: str) -> None:
    body = chat_body(user=name)
    with engine_playing(lambda c, a: silent_first(c, a, engine)) as engine, bench(engine.url) as b:
        impatient_client(b, engine, body)
        assert engine.hung_up.wait(PATIENCE)
        b.post(body)
        b.post(chat_body(user="another"))
        seen = b.trial.close()
    assert [e.duplicate_of for e in seen] == [None, 0, None]
    assert (seen[0].ended, seen[0].t_first_token, seen[0].partial) == ("client_closed", None, True)


def test_case_04_every_repeat_names_the_first_and_only_the_first_is_kept(tmp_path: Path) -> None:
    reply = whole(b"{}").replace(b"200 OK", b"500 No")
    with engine_playing(lambda c, a: c.sendall(reply)) as engine, bench(engine.url, evidence=tmp_path) as b:
        for _ in range(3):
            b.post(chat_body())
        assert [e.duplicate_of for e in b.trial.close()] == [None, 0, 0]
    assert [path.name for path in sorted(tmp_path.glob("exchanges/*.request"))] == ["000.request"]


def test_case_05_after_the_end_requests_are_refused_and_counted() -> None:
    def play(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(SSE_HEAD + chunk(delta(content="a")))
        engine.watch(connection)

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", CHAT, chat_body(stream=True))
        client.getresponse().read(5)
        seen = only(b.trial.close())
        assert engine.hung_up.wait(PATIENCE)
        assert [b.post(chat_body())[0] for _ in range(2)] == [503, 503]
        assert b.trial.refused_after_end() == 2
    assert (seen.ended, seen.error) == ("client_closed", "the trial ended")
    assert len(engine.asked) == 1


def test_a_closed_trial_lets_go_of_its_door_when_the_next_opens() -> None:
    """A listener that stayed open would keep its sandbox's network alive for as long as the batch runs."""
    with engine_playing(lambda c, a: c.sendall(whole(b"{}"))) as engine, bench(engine.url) as b:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            first = Bench(b.meter.open_trial("t1", listener), listener.getsockname()[1], b.meter)
        first.trial.close()
        assert first.post(chat_body())[0] == 503
        with socket.create_server(("127.0.0.1", 0)) as listener:
            second = Bench(b.meter.open_trial("t2", listener), listener.getsockname()[1], b.meter)
            assert second.post(chat_body())[0] == 200
        with pytest.raises(ConnectionError):
            first.post(chat_body())


def test_two_exchanges_at_once_are_kept_apart() -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def play(connection: socket.socket, asked: Asked) -> None:
        both.wait()
        connection.sendall(whole(b'{"choices": [], "model": "%s"}' % json.loads(asked.body)["model"].encode()))

    with engine_playing(play) as engine, bench(engine.url) as b:
        posts = [threading.Thread(target=b.post, args=(chat_body(model=name),)) for name in ("one", "two")]
        for post in posts:
            post.start()
        for post in posts:
            post.join()
        seen = b.trial.close()
    assert all(e.model_asked == e.model_answered for e in seen)
    assert seen[1].t_start < seen[0].t_end


def test_a_slow_reader_holds_the_engine_back() -> None:
    """The engine floods; the client reads nothing. What is under way stays below socket buffers plus read-ahead."""
    sent: list[int] = []

    def play(connection: socket.socket, asked: Asked) -> None:
        connection.settimeout(1.0)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        try:
            while True:
                sent.append(connection.send(b"x" * 65536))
        except TimeoutError:
            engine.hung_up.set()

    with engine_playing(play) as engine, bench(engine.url) as b:
        client = b.client()
        client.request("POST", CHAT, chat_body())
        assert engine.hung_up.wait(PATIENCE)
        client.close()
        wait_for(lambda: b.trial.live().open == 0)
    assert sum(sent) < 64 << 20


# ---- what is on the record ----


def answering(message: dict[str, Any], finish: str = "stop", **more: Any) -> Play:
    reply = {"model": "m", "choices": [{"message": message, "finish_reason": finish}], **more}
    return lambda connection, asked: connection.sendall(whole(json.dumps(reply).encode()))


def exchange_for(play: Play, body: bytes, path: str = CHAT, expect: Expectation | None = None) -> Exchange:
    with engine_playing(play) as engine, bench(engine.url, expect=expect) as b:
        b.post(body, path)
        return only(b.trial.close())


def test_B05_a_request_without_tools_beside_others_is_auxiliary_and_no_turn() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    with engine_playing(answering({"content": "ok"})) as engine, bench(engine.url) as b:
        b.post(chat_body(user="title"))
        b.post(chat_body(tools=tools))
        wait_for(lambda: b.trial.live().open == 0)
        live = b.trial.live()
        seen = b.trial.close()
    assert [e.auxiliary for e in seen] == [True, False]
    assert live.turns == 1
    assert seen[1].tools == ("bash",)


def test_B05_a_title_request_is_auxiliary_even_alone_and_an_agent_without_tools_has_turns() -> None:
    system = {"role": "system", "content": "You are a title generator. You output ONLY a thread title."}
    title = json.dumps({"model": "m", "messages": [system, {"role": "user", "content": "fix it"}]}).encode()
    with engine_playing(answering({"content": "ok"})) as engine, bench(engine.url) as b:
        b.post(title)
        b.post(chat_body())
        wait_for(lambda: b.trial.live().turns == 1)
        assert [e.auxiliary for e in b.trial.close()] == [True, False]


PROMPT = 'Do "x"\nline2 \u2713'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PROMPT, True),
        (f"<context>\n{PROMPT}\n</context>", True),
        (json.dumps(PROMPT), False),
        ('Do "x" line2', False),
    ],
)
def test_B08_the_prompt_must_arrive_in_one_piece(text: str, found: bool) -> None:
    expect = Expectation(prompt=f"{PROMPT}\n")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert exchange_for(answering({"content": "ok"}), body, expect=expect).prompt_found is found


def test_B08_without_an_expected_prompt_nothing_is_said() -> None:
    seen = exchange_for(answering({"content": "ok"}), chat_body())
    assert seen.prompt_found is None
    assert seen.user_text_digest == digest(b"hi")


def test_case_20_B14_names_that_answered_or_were_asked_for_are_on_record() -> None:
    play = lambda c, a: c.sendall(whole(b'{"choices": [], "model": "vendor-large"}'))  # noqa: E731
    seen = exchange_for(play, chat_body(model="claude-haiku-4-5"))
    assert (seen.model_asked, seen.model_answered) == ("claude-haiku-4-5", "vendor-large")


def test_case_19_B45_a_count_equal_to_the_cap_is_a_cut_although_it_says_completed() -> None:
    def reply(output: int) -> bytes:
        usage = {"input_tokens": 9, "output_tokens": output}
        return whole(json.dumps({"model": "m", "status": "completed", "output": [], "usage": usage}).encode())

    def cut(output: int, cap: int | None) -> bool | None:
        body = json.dumps({"model": "m", "input": "hi", **({"max_output_tokens": cap} if cap else {})}).encode()
        return exchange_for(lambda c, a: c.sendall(reply(output)), body, "/v1/responses").cut_off

    assert [cut(64, 64), cut(63, 64), cut(64, None)] == [True, False, False]


def test_case_19_a_finish_reason_of_length_is_a_cut() -> None:
    assert exchange_for(answering({"content": "a"}, finish="length"), chat_body()).cut_off is True
    assert exchange_for(answering({"content": "a"}), chat_body()).cut_off is False


def test_case_21_calls_are_recorded_malformed_ones_too_and_pass_untouched() -> None:
    calls = [{"id": "", "function": {"name": "bash", "arguments": a}} for a in ('{"command": "ls"}', '{"command": "l')]
    seen = exchange_for(answering({"tool_calls": calls}, "tool_calls"), chat_body())
    assert [(c.name, c.parsed) for c in seen.calls] == [("bash", True), ("bash", False)]


def test_B52_a_call_written_as_text_is_counted() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    text = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
    seen = exchange_for(answering({"content": text}), chat_body(tools=tools))
    assert (seen.calls, seen.calls_textual) == ((), 1)


def test_B29_an_engine_that_refuses_its_models_json_is_told_from_other_errors() -> None:
    error = json.dumps({"error": {"message": "error parsing tool call: raw='{\"a'"}}).encode()
    reply = whole(error).replace(b"200 OK", b"500 Internal Server Error")
    with engine_playing(lambda c, a: c.sendall(reply)) as engine, bench(engine.url) as b:
        assert b.post(chat_body()) == (500, error)
        b.post(chat_body())
        seen = b.trial.close()
    assert [(e.status, e.error_kind, e.ended) for e in seen] == [(500, "tool_json", "complete")] * 2
    assert seen[0].error == "error parsing tool call: raw='{\"a'"
    assert seen[1].duplicate_of == 0


def test_B39_timings_are_the_source_where_usage_is_missing() -> None:
    timings = {"cache_n": 10, "prompt_n": 2, "prompt_ms": 100.0, "predicted_n": 3, "predicted_ms": 50.0}
    stream = (
        delta(content="a") + data_line({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings}) + DONE
    )
    seen = exchange_for(playing_stream(stream), chat_body(stream=True))
    assert seen.tokens == Tokens(prompt_total=12, prompt_cached=10, prompt_new=2, output=3)
    assert seen.tokens_source == "timings"


def test_an_unstreamed_reply_has_no_token_times() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 2}
    seen = exchange_for(answering({"content": "a"}, usage=usage), chat_body())
    assert (seen.t_first_token, seen.t_last_token, seen.stream) == (None, None, False)
    assert seen.tokens == Tokens(prompt_total=12, output=2)


def test_B09_a_first_line_that_changes_per_request_is_reported_after_the_trial() -> None:
    def body(cch: str, turns: int) -> bytes:
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={cch};"},
            {"type": "text", "text": "r" * 900},
        ]
        return json.dumps(
            {"model": "m", "system": system, "messages": [{"role": "user", "content": "hi"}] * turns}
        ).encode()

    with engine_playing(lambda c, a: c.sendall(whole(b'{"content": []}'))) as engine, bench(engine.url) as b:
        b.post(body("aaaa", 1), "/v1/messages")
        b.post(body("bbbb", 2), "/v1/messages")
        seen = b.trial.close()
        notes = b.trial.prefix_notes()
    assert [(n.earlier, n.later, n.found.kind, n.found.where) for n in notes] == [(0, 1, "cache_buster", "system[0]")]
    assert seen[1].prefix_shared == body("bbbb", 2).index(b"bbbb")


def test_declared_rewrites_change_what_the_engine_gets_and_nothing_else() -> None:
    steps = (Rewrite(name="sampler", values={"temperature": 0.5}), Rewrite(name="max_tokens", cap=99))
    body = chat_body(temperature=0, max_tokens=32000)
    with engine_playing(answering({"content": "a"})) as engine, bench(engine.url, rewrites=steps) as b:
        b.post(body)
        seen = only(b.trial.close())
    forwarded = json.loads(engine.asked[0].body)
    assert (forwarded["temperature"], forwarded["max_tokens"]) == (0.5, 99)
    assert (seen.request_digest, seen.rewritten) == (digest(body), ("sampler", "max_tokens"))
    assert (seen.output_cap, dict(seen.sampler)) == (99, {"temperature": 0})


def test_identical_calls_in_a_row_are_counted_while_the_trial_runs() -> None:
    call = [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}]
    with engine_playing(answering({"tool_calls": call}, "tool_calls")) as engine, bench(engine.url) as b:
        for n in range(3):
            b.post(chat_body(user=str(n)))
        wait_for(lambda: b.trial.live().turns == 3)
        assert b.trial.live().repeats == 3


def test_running_totals_start_from_nothing() -> None:
    with engine_playing(answering({"content": "a"})) as engine, bench(engine.url) as b:
        live = b.trial.live()
    assert (live.open, live.turns, live.prompt_total, live.last_progress) == (0, 0, 0, None)


def test_a_prompt_that_was_not_counted_leaves_the_running_total_unknown() -> None:
    counted = answering({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 1})
    silent = answering({"content": "a"})

    def play(connection: socket.socket, asked: Asked) -> None:
        (counted if len(engine.asked) == 1 else silent)(connection, asked)

    totals: list[int | None] = []
    with engine_playing(play) as engine, bench(engine.url) as b:
        for _ in range(2):
            b.post(chat_body())
            wait_for(lambda: b.trial.live().open == 0)
            totals.append(b.trial.live().prompt_total)
    assert totals == [9, None]


def test_evidence_holds_bodies_and_records(tmp_path: Path) -> None:
    body = chat_body(stream=True)
    with engine_playing(playing_stream(CHAT_STREAM)) as engine, bench(engine.url, evidence=tmp_path) as b:
        b.post(body)
        seen = only(b.trial.close())
    folder = tmp_path / "exchanges"
    assert (folder / "000.request").read_bytes() == body
    assert (folder / "000.response").read_bytes() == CHAT_STREAM
    line = (tmp_path / "exchanges.jsonl").read_bytes()
    assert msgspec.json.decode(line, type=Exchange) == seen


def test_times_count_from_the_start_that_was_set() -> None:
    with engine_playing(playing_stream(CHAT_STREAM)) as engine, bench(engine.url) as b:
        b.trial.set_start(time.monotonic() - 1000)
        b.post(chat_body(stream=True))
        seen = only(b.trial.close())
    times = (seen.t_start, seen.t_request_end, seen.t_first_byte, seen.t_first_token, seen.t_last_token, seen.t_end)
    known = [t for t in times if t is not None]
    assert known == sorted(known)
    assert len(known) == 6
    assert 1000 <= known[0] < 1000 + PATIENCE
