"""The wire of the scripted engine: HTTP/1.1 on a free port of 127.0.0.1, in a thread with its own event loop.

It can be as bad as a real server: answer late, never, slowly, for ever, with an error, or close in the middle. It
counts its own words, and what it reports on the wire equals what `end` returns. It does not know any script.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import h11
import msgspec

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.engines.base import TrialContext
from benchmarks.lab.engines.scripted import chat, messages, responses, textual
from benchmarks.lab.engines.scripted.talk import (
    Answering,
    Beat,
    Conversation,
    Reply,
    Usage,
    count_tokens,
    pieces,
    words,
)
from benchmarks.lab.errors import LabError
from benchmarks.lab.model import EngineCounters, Record

Script = Callable[[Conversation, TrialContext], Reply]

REMEMBERED_PROMPTS: Final = 8
ASIDE: Final = "Work on the repository"  # a title: what requests without tools mostly ask for
JSON_TYPE: Final = (b"content-type", b"application/json")
SSE_TYPE: Final = (b"content-type", b"text/event-stream")


class Speech(Record, frozen=True, kw_only=True):
    """What a dialect's module offers."""

    read: Callable[[Mapping[str, Any]], Conversation]
    whole: Callable[[Reply, Answering, Usage], dict[str, Any]]
    events: Callable[[Reply, Answering, Callable[[], Usage]], Iterator[Beat]]


ROUTES: Final[Mapping[str, Speech]] = {
    DIALECTS["openai-chat"].path: Speech(read=chat.read, whole=chat.whole, events=chat.events),
    DIALECTS["openai-responses"].path: Speech(read=responses.read, whole=responses.whole, events=responses.events),
    DIALECTS["anthropic-messages"].path: Speech(read=messages.read, whole=messages.whole, events=messages.events),
}


class Request(Record, frozen=True, kw_only=True):
    """A request as read from the wire; `path` without its query."""

    method: str
    path: str
    body: bytes
    at: float  # event loop clock, when its last byte was here


@dataclass
class Playing:
    """The trial under way and what was counted in it."""

    name: str = "nop"
    script: Script | None = None
    aside: bool = False  # play to requests without tools, too
    context: TrialContext = field(default_factory=TrialContext)
    turns: int = 0
    exchanges: int = 0
    prompt_new: int = 0
    prompt_cached: int = 0
    output: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class Progress:
    """How far one reply got: the server counts while it streams."""

    prompt: int
    cached: int
    prefill_seconds: float = 0.0
    began: float = 0.0
    output: int = 0
    reasoning: int = 0

    def usage(self, now: float) -> Usage:
        """The counts so far."""
        return Usage(
            prompt=self.prompt,
            cached=self.cached,
            output=self.output,
            reasoning=self.reasoning,
            prefill_seconds=self.prefill_seconds,
            output_seconds=max(0.0, now - self.began) if self.began else 0.0,
        )


class Line:
    """One connection: h11's state and the two streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.wire = h11.Connection(h11.SERVER)

    async def receive(self, clock: Callable[[], float]) -> Request | None:
        """The next whole request, or None when the client closed."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.wire.next_event()
            if event is h11.NEED_DATA:
                if self.wire.they_are_waiting_for_100_continue:
                    await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                self.wire.receive_data(await self.reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head:
                path = head.target.decode("latin-1").split("?")[0]
                return Request(method=head.method.decode(), path=path, body=bytes(body), at=clock())
            else:
                return None

    async def send(self, *events: h11.Event) -> None:
        """Write events and wait while the client is slower than we are."""
        self.writer.write(b"".join(self.wire.send(event) or b"" for event in events))
        await self.writer.drain()

    async def send_json(self, status: int, body: Mapping[str, Any], *, head_only: bool = False) -> None:
        """A whole response."""
        data = json.dumps(body).encode()
        await self.send(
            self._head(status, data),
            *([] if head_only else [h11.Data(data=data)]),
            h11.EndOfMessage(),
        )

    async def send_half(self, status: int, body: Mapping[str, Any]) -> None:
        """A response that breaks off in the middle."""
        data = json.dumps(body).encode()
        await self.send(self._head(status, data), h11.Data(data=data[: len(data) // 2]))
        raise ConnectionAbortedError("as the script says")

    def next_cycle(self) -> bool:
        """Make ready for another request; False if the connection must close."""
        if self.wire.our_state is not h11.DONE or self.wire.their_state is not h11.DONE:
            return False
        self.wire.start_next_cycle()
        return True

    def _head(self, status: int, data: bytes) -> h11.Response:
        headers = [JSON_TYPE, (b"content-length", str(len(data)).encode())]
        return h11.Response(status_code=status, headers=headers)


class ScriptedServer:
    """Context manager: runs from enter to exit. `begin` and `end` bracket a trial."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._playing = Playing()
        self._prompts: deque[list[str]] = deque(maxlen=REMEMBERED_PROMPTS)
        self._open: set[asyncio.Task[None]] = set()
        self._answers: dict[asyncio.Task[None], asyncio.Task[None]] = {}  # an answer to the connection it goes to
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._server: asyncio.Server | None = None
        self.base_url = ""

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result()
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server:
            self._loop.call_soon_threadsafe(self._server.close)
        asyncio.run_coroutine_threadsafe(_drop(self._open), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, name: str, script: Script, context: TrialContext, *, aside: bool = False) -> None:
        """Play `script` from now on (`aside`: to requests without tools, too), counting from zero, nothing cached."""

        async def change() -> None:
            self._prompts.clear()
            self._playing = Playing(name=name, script=script, context=context, aside=aside)

        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    def end(self) -> EngineCounters:
        """Drop requests under way and return what was counted. Raises LabError if the script itself broke.

        Idle connections stay: whoever keeps them for the next trial would take a closed one for a failing engine.
        """

        async def change() -> Playing:
            under_way = {answer: to for answer, to in self._answers.items() if not answer.done()}
            for answer in under_way:
                answer.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)
            played, self._playing = self._playing, Playing()
            return played

        played = asyncio.run_coroutine_threadsafe(change(), self._loop).result()
        if played.faults:
            raise LabError(f"scripted engine: script '{played.name}' broke: {played.faults[0]}")
        return EngineCounters(prompt_new=played.prompt_new, prompt_cached=played.prompt_cached, output=played.output)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._open.add(task)
        try:
            await self._connection(Line(reader, writer), task)
        except (ConnectionError, h11.ProtocolError):
            pass  # the client went away, or the script cuts the reply: what was counted stands
        except asyncio.CancelledError:
            writer.transport.abort()  # the trial ended: nothing waits for a client that does not read
        finally:
            self._open.discard(task)
            writer.close()

    async def _connection(self, line: Line, task: asyncio.Task[None]) -> None:
        while request := await line.receive(self._loop.time):
            answer = self._loop.create_task(self._answer(request, line))
            self._answers[answer] = task
            more = asyncio.ensure_future(line.reader.read(65536))
            try:
                await asyncio.wait({answer, more}, return_when=asyncio.FIRST_COMPLETED)
                if more.done() and not more.result():
                    return  # the client left
                await answer
            finally:
                del self._answers[answer]
                await _drop({answer, more})  # nothing started for a request outlives it
            if not more.cancelled():
                line.wire.receive_data(more.result())
            if not line.next_cycle():
                return

    async def _answer(self, request: Request, line: Line) -> None:
        if request.method != "POST":
            status, body = self._plain(request.path)
            await line.send_json(status, body, head_only=request.method == "HEAD")
            return
        try:
            given = json.loads(request.body or b"{}")
        except ValueError:
            await line.send_json(400, _error(400, "the request is not JSON", "invalid_request_error"))
            return
        if request.path == DIALECTS["anthropic-messages"].path + "/count_tokens":
            await line.send_json(200, {"input_tokens": count_tokens(messages.read(given).prompt)})
        elif request.path in ROUTES:
            await self._reply(ROUTES[request.path], given, request, line)
        else:
            await line.send_json(404, _error(404, "File Not Found", "not_found_error"))

    def _plain(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "scripted", "type": "model"}
            return 200, {"object": "list", "data": [entry], "has_more": False}
        if path in ("/", "/health"):
            return 200, {"status": "ok"}
        return 404, _error(404, "File Not Found", "not_found_error")

    async def _reply(self, speech: Speech, given: Mapping[str, Any], request: Request, line: Line) -> None:
        playing = self._playing
        conversation = speech.read(given)
        reply = self._plan(conversation, playing)
        playing.exchanges += 1
        if reply.end == "never":
            await asyncio.Event().wait()
        if reply.problem is not None:
            await self._sleep_until(request.at + reply.prefill_seconds)
            await line.send_json(reply.status, reply.problem)
            return
        to = Answering(
            number=playing.exchanges,
            model=reply.model or self._model,
            created=int(time.time()),
            conversation=conversation,
        )
        progress = self._prefilled(conversation)
        await self._sleep_until(request.at + reply.prefill_seconds)
        progress.began = self._loop.time()
        progress.prefill_seconds = progress.began - request.at
        playing.prompt_new += progress.prompt - progress.cached
        playing.prompt_cached += progress.cached
        if conversation.stream:
            await self._send_stream(reply, progress, speech.events(reply, to, lambda: self._usage(progress)), line)
            return
        await self._work_through(reply, progress)
        body = speech.whole(reply, to, self._usage(progress))
        await (line.send_half(200, body) if reply.end == "cut" else line.send_json(200, body))

    def _plan(self, conversation: Conversation, playing: Playing) -> Reply:
        """Ask the script, or answer aside; a reply longer than the request's cap is cut, as a model's would be."""
        is_turn = bool(conversation.tools) or textual.edit_format(conversation) is not None
        if not is_turn and not playing.aside:
            return _capped(Reply(text=ASIDE), conversation.cap)
        if playing.script is None:
            return _capped(Reply(text="No trial is under way."), conversation.cap)
        turn, playing.turns = playing.turns, playing.turns + int(is_turn)
        counted = msgspec.structs.replace(conversation, turn=turn)
        try:
            return _capped(playing.script(counted, playing.context), conversation.cap)
        except Exception as error:  # a broken script must be loud, and only the trial's thread can raise it
            playing.faults.append(f"{type(error).__name__}: {error}")
            return Reply(status=500, problem=_error(500, "the script broke", "server_error"))

    def _prefilled(self, conversation: Conversation) -> Progress:
        """Count the prompt; what it shares with an earlier one counts as cached, but never its last word."""
        prompt = conversation.prompt.split() or [""]
        cached = max((_shared(prompt, earlier) for earlier in self._prompts), default=0)
        self._prompts.append(prompt)
        return Progress(prompt=len(prompt), cached=min(cached, len(prompt) - 1))

    async def _send_stream(self, reply: Reply, progress: Progress, beats: Iterator[Beat], line: Line) -> None:
        cut_after = sum(1 for _ in pieces(reply)) // 2 if reply.end == "cut" else None
        await line.send(h11.Response(status_code=200, headers=[SSE_TYPE, (b"cache-control", b"no-cache")]))
        sent = 0
        for beat in beats:
            if beat.tokens:
                if sent == cut_after:
                    raise ConnectionAbortedError("as the script says")
                await self._sleep_until(progress.began + progress.output * reply.token_seconds)
                self._count(progress, beat.tokens, beat.reasoning)
                sent += 1
            await line.send(h11.Data(data=beat.data))
        await line.send(h11.EndOfMessage())

    async def _work_through(self, reply: Reply, progress: Progress) -> None:
        """Take as long over a reply as it would take to stream it."""
        for piece in pieces(reply):
            await self._sleep_until(progress.began + progress.output * reply.token_seconds)
            self._count(progress, piece.tokens, piece.kind == "reasoning")

    def _usage(self, progress: Progress) -> Usage:
        return progress.usage(self._loop.time())

    def _count(self, progress: Progress, tokens: int, reasoning: bool) -> None:
        progress.output += tokens
        progress.reasoning += tokens if reasoning else 0
        self._playing.output += tokens

    async def _sleep_until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self._loop.time()))  # 0 still lets the loop see that a client left


async def _drop(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel and wait until all are over; whoever cancels the caller meanwhile is obeyed."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _shared(one: list[str], other: list[str]) -> int:
    """Length of the common prefix."""
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _capped(reply: Reply, cap: int | None) -> Reply:
    """The reply, its text cut at `cap` tokens; calls are never cut."""
    if cap is None or reply.calls or reply.endless or count_tokens(reply.reasoning) + count_tokens(reply.text) <= cap:
        return reply
    kept = words(reply.text)[: max(0, cap - count_tokens(reply.reasoning))]
    return msgspec.structs.replace(reply, text="".join(kept), length=True)


def _error(code: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": kind}}
