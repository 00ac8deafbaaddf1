"""The two ends that `self_bench.py meter` puts around the meter: an instant engine and a load generator.

Standard library only, so that the generator runs inside a sandbox by any Python. Prints one JSON object.

    python self_bench_peers.py engine                      prints its port, then serves until its input ends
    python self_bench_peers.py load PORT COUNT PATH        COUNT requests, one after another, on one connection;
                                                           PATH also says: one long stream, or the clocked scene
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import socket
import sys
import threading
import time
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": []}
USAGE = {"prompt_tokens": 9000, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8000}}
PROMPT_BYTES = 30_000  # what OpenCode's first request weighs
PIECE = 64 << 10
STREAM_PATH = "/v1/chat/completions?tokens"
CHAT_PATH = "/v1/chat/completions"
CLOCKED_PATH = "/v1/chat/completions?clocked"
PREFILL_SECONDS, TOKENS, TOKEN_SECONDS, TOOL_SECONDS, APART_SECONDS = 2.0, 50, 0.04, 1.5, 0.5


def event(content: str) -> bytes:
    """One SSE event with a token, framed as an HTTP chunk."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return framed(b"data: " + json.dumps({**TOKEN, "choices": [choice]}).encode() + b"\n\n")


def framed(data: bytes) -> bytes:
    """An HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def end() -> bytes:
    """The end of a stream: usage, [DONE], last chunk."""
    usage = json.dumps({**TOKEN, "usage": USAGE}).encode()
    return framed(b"data: " + usage + b"\n\n") + framed(b"data: [DONE]\n\n") + framed(b"")


class Engine(asyncio.Protocol):
    """Answers at once: a stream of two tokens, of `x-tokens` tokens each in a write of its own, or of a gigabyte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.got, self.writable = transport, b"", asyncio.Event()
        self.writable.set()
        self.job: asyncio.Task[None] | None = None

    def pause_writing(self) -> None:
        """The reader is behind."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """The reader has caught up."""
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The reader has left."""
        del exc
        if self.job:
            self.job.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a request is whole."""
        self.got += data
        head, split, body = self.got.partition(b"\r\n\r\n")
        fields = head.lower().split(b"\r\n")
        length = next((int(row[15:]) for row in fields if row.startswith(b"content-length:")), 0)
        if not split or len(body) < length:
            return
        self.got = b""
        path = head.split()[1].decode()
        if path == CHAT_PATH:
            self.transport.write(HEAD + event("a"))
            self.transport.write(event("b") + end())
        elif path == CLOCKED_PATH:
            self.job = asyncio.get_running_loop().create_task(self.clocked(stream=b'"stream": true' in body))
        else:
            amount = next(int(row[9:]) for row in fields if row.startswith(b"x-amount:"))
            self.job = asyncio.get_running_loop().create_task(self.stream(path, amount))

    async def stream(self, path: str, amount: int) -> None:
        """`amount` tokens, or `amount` bytes in large events."""
        self.transport.write(HEAD)
        token = event("tok") if path == STREAM_PATH else event("x" * PIECE)
        for _ in range(amount if path == STREAM_PATH else amount // PIECE):
            self.transport.write(token)
            await self.writable.wait()
        self.transport.write(end())

    async def clocked(self, *, stream: bool) -> None:
        """Tokens at stated times after the request: the first after `PREFILL_SECONDS`, then every `TOKEN_SECONDS`."""
        loop = asyncio.get_running_loop()
        begin = due = loop.time()
        out = HEAD
        for number in range(TOKENS):
            due = begin + PREFILL_SECONDS + number * TOKEN_SECONDS
            await asyncio.sleep(max(0.0, due - loop.time()))
            if stream:
                self.transport.write(out + event("a"))
                out = b""
        late = {"late_ms": (loop.time() - due) * 1000}  # this stand-in's own, on a busy machine
        if stream:
            self.transport.write(framed(b"data: " + json.dumps({**TOKEN, **late}).encode() + b"\n\n") + end())
        else:
            reply = json.dumps({**TOKEN, **late, "usage": USAGE}).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(reply)
            self.transport.write(head + reply)


async def serve() -> None:
    """Serve on a free port until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Engine, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def request(path: str, amount: int) -> bytes:
    """A chat request of about `PROMPT_BYTES`."""
    body = json.dumps(
        {"model": "bench", "stream": True, "messages": [{"role": "user", "content": "word " * (PROMPT_BYTES // 5)}]}
    ).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nX-Amount: {amount}\r\n\r\n"
    return head.encode() + body


def first_tokens(port: int, count: int) -> list[float]:
    """Seconds from sending a request to its first token, `count` times on one connection."""
    asked, times = request(CHAT_PATH, 0), []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            begin, got = time.perf_counter(), b""
            connection.sendall(asked)
            while b"data:" not in got:
                got += receive(connection)
            times.append(time.perf_counter() - begin)
            while not got.endswith(b"\r\n0\r\n\r\n"):
                got += receive(connection)
            time.sleep(0.002)  # the next request of an agent does not come in the same instant
    return times


def drain(port: int, amount: int, path: str) -> dict[str, Any]:
    """Read one long stream; seconds, bytes and events seen."""
    size = events = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        begin, last = time.perf_counter(), b""
        connection.sendall(request(path, amount))
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        while piece := reply.read1(PIECE):
            size += len(piece)
            events += (last + piece).count(b"\n\n")
            last = piece[-1:] if not piece.endswith(b"\n\n") else b""
    return {"seconds": time.perf_counter() - begin, "bytes": size, "events": events}


def ask(port: int, *, stream: bool) -> float:
    """One request to the clocked engine, read to its end; milliseconds that its last token was late."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"model": "bench", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    connection.request("POST", CLOCKED_PATH, json.dumps(body))
    reply = connection.getresponse().read()
    connection.close()
    return float(reply.partition(b'"late_ms": ')[2].partition(b"}")[0].partition(b",")[0])


def scene(port: int) -> dict[str, float]:
    """A turn, a tool, two turns that overlap, a tool, a turn that does not stream.

    The seconds each share must have, and `late_ms`: how far the engine itself was behind its script at most.
    """
    late = [ask(port, stream=True)]
    time.sleep(TOOL_SECONDS)
    first = threading.Thread(target=lambda: late.append(ask(port, stream=True)))
    first.start()
    time.sleep(APART_SECONDS)
    late.append(ask(port, stream=True))
    first.join()
    time.sleep(TOOL_SECONDS)
    late.append(ask(port, stream=False))
    decode = (TOKENS - 1) * TOKEN_SECONDS
    return {
        "prefill": 2 * PREFILL_SECONDS,
        "decode": 2 * decode + APART_SECONDS,
        "model_unsplit": PREFILL_SECONDS + decode,
        "client_and_tool": 2 * TOOL_SECONDS,
        "late_ms": max(late),
    }


def receive(connection: socket.socket) -> bytes:
    """Some bytes; EOFError if the connection ended."""
    data = connection.recv(1 << 18)
    if not data:
        raise EOFError("the connection ended in the middle of a reply")
    return data


def main(argv: list[str]) -> int:
    """Play one of the two ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ends = parser.add_subparsers(dest="end", required=True)
    ends.add_parser("engine")
    load = ends.add_parser("load")
    load.add_argument("port", type=int)
    load.add_argument("count", type=int)
    load.add_argument("path")
    given = parser.parse_args(argv)
    if given.end == "engine":
        asyncio.run(serve())
        return 0
    if given.path == CHAT_PATH:
        result: dict[str, Any] = {"times": first_tokens(given.port, given.count)}
    else:
        result = scene(given.port) if given.path == CLOCKED_PATH else drain(given.port, given.count, given.path)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
