"""What is read out of requests and replies, before it becomes an `Exchange`; and safe access to foreign JSON.

Nothing here trusts the shape of what it reads: a field of the wrong type counts as not told (`None`).
It does not know dialects, connections or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from benchmarks.lab.model import EngineTimings, Record, SamplerName, Tokens, ToolCall

JsonObject = dict[str, Any]

TEXT_KEPT = 1 << 18  # characters of visible text kept to look for tool calls written as text
ARGUMENTS_CHECKED = 4 << 20  # characters of a call's arguments kept while it arrives
ARGUMENTS_KEPT = 64 << 10  # characters of a call's arguments that go on the record
ERROR_KEPT = 2000  # characters of an engine's error that go on the record
CALLS_KEPT = 256  # calls of one reply; a runaway may write more

# How deep a model is to think shapes its reply as a sampler does, under another name in each dialect.
SAMPLING = (*get_args(SamplerName), "reasoning_effort", "reasoning", "thinking", "output_config")


class RequestFacts(Record, frozen=True, kw_only=True):
    """What a request asks for. `user_texts`: one string per text part of its user messages, in order."""

    model: str | None = None
    stream: bool = False
    output_cap: int | None = None
    sampler: Mapping[str, Any] = {}
    tools: tuple[str, ...] = ()
    user_texts: tuple[str, ...] = ()
    system_text: str = ""


Part = tuple[str, str]  # JSON path and text of one piece of the prompt


@dataclass(slots=True)
class PartialCall:
    """A tool call while it arrives. `free_text`: its argument is not meant to be JSON (custom tools)."""

    name: str = ""
    call_id: str = ""
    arguments: list[str] = field(default_factory=list)
    size: int = 0
    free_text: bool = False
    empty_is_object: bool = False

    def add(self, fragment: str) -> None:
        """Append a fragment of the arguments, up to `ARGUMENTS_CHECKED` characters."""
        self.size += len(fragment)
        if fragment and self.size <= ARGUMENTS_CHECKED:
            self.arguments.append(fragment)

    def replace(self, whole: str) -> None:
        """Take the arguments as a whole, in place of the fragments."""
        self.arguments.clear()
        self.size = 0
        self.add(whole)

    def call(self) -> ToolCall:
        """The call as recorded."""
        text = "".join(self.arguments)
        if not text and self.empty_is_object:
            text = "{}"
        return ToolCall(name=self.name, arguments=text[:ARGUMENTS_KEPT], parsed=self.free_text or _is_object(text))


@dataclass(slots=True)
class Reply:
    """What has been seen so far of one reply. Times are those of the caller's clock; sizes are bounded."""

    model: str | None = None
    usage: JsonObject = field(default_factory=dict)
    timings: JsonObject = field(default_factory=dict)
    finish: str | None = None
    done: bool = False  # the dialect's own end was seen
    failed: bool = False  # an error arrived inside the reply
    error: str | None = None
    calls: dict[str, PartialCall] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    text_size: int = 0
    reasoning_size: int = 0  # characters of reasoning seen
    fragments: int = 0  # non-empty fragments of any kind: a lower bound of the tokens generated so far
    first_token: float | None = None
    first_answer: float | None = None
    last_token: float | None = None

    def token(self, at: float, *, answer: bool) -> None:
        """A non-empty fragment arrived at `at`; `answer`: visible content or a tool call, not reasoning."""
        self.fragments += 1
        self.last_token = at
        if self.first_token is None:
            self.first_token = at
        if answer and self.first_answer is None:
            self.first_answer = at

    def say(self, text: object, at: float) -> None:
        """Visible content arrived."""
        if isinstance(text, str) and text:
            self.token(at, answer=True)
            self.text_size += len(text)
            if self.text_size <= TEXT_KEPT:
                self.text.append(text)

    def think(self, text: object, at: float) -> None:
        """Reasoning arrived."""
        if isinstance(text, str) and text:
            self.token(at, answer=False)
            self.reasoning_size += len(text)

    def call(self, key: str) -> PartialCall:
        """The call filed under `key`, made on first use."""
        if key not in self.calls and len(self.calls) >= CALLS_KEPT:
            return PartialCall()
        return self.calls.setdefault(key, PartialCall())

    def fail(self, error: object) -> None:
        """The engine reported an error inside its reply."""
        self.failed = True
        self.error = error_text(error)


class DialectReader(Record, frozen=True, kw_only=True):
    """One dialect as data and pure functions; the table of them is `dialects.DIALECTS`."""

    path: str  # where servers take it; a POST whose path ends so, without the version, speaks this dialect
    mark: str  # the list that every whole reply holds
    request: Callable[[JsonObject], RequestFacts]
    parts: Callable[[JsonObject], list[Part]]  # the prompt's pieces in the order a template renders them
    event: Callable[[Reply, str, JsonObject, float], None]  # one streamed event: name, data, time of arrival
    whole: Callable[[Reply, JsonObject], None]  # a reply that came in one piece
    usage: Callable[[JsonObject], Tokens]
    cut_reasons: frozenset[str]  # finish reasons that mean the cap or the context ended the reply


def decode(body: bytes | str) -> object:
    """Parsed JSON, or None where it does not parse."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def obj(value: object) -> JsonObject:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def text_or_none(value: object) -> str | None:
    """`value` if it is a string that says something."""
    return value if isinstance(value, str) and value else None


def count(value: object) -> int | None:
    """`value` as a count, None if it is not a number of at least zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1 << 53 else None


def sampling(body: JsonObject) -> dict[str, Any]:
    """The sampling parameters a request states."""
    return {name: body[name] for name in SAMPLING if body.get(name) is not None}


def content_texts(content: object) -> list[str]:
    """The texts of a message's content: a string, or a list of parts with a `text`."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in items(content) if isinstance(part, dict) and isinstance(part.get("text"), str)]


def prompt_tokens(total: int | None, cached: int | None, output: int | None, reasoning: int | None) -> Tokens:
    """Normalised counts. A prompt of no tokens cannot be, so a total of 0 is an engine that does not tell."""
    total = total or None
    new = total - cached if total is not None and cached is not None and cached <= total else None
    return Tokens(prompt_total=total, prompt_cached=cached, prompt_new=new, output=output, reasoning=reasoning)


def timing_tokens(timings: JsonObject) -> Tokens:
    """llama.cpp's `timings` as counts: the whole prompt is `cache_n + prompt_n`."""
    cached, new = count(timings.get("cache_n")), count(timings.get("prompt_n"))
    total = None if cached is None or new is None else cached + new
    return prompt_tokens(total, cached, count(timings.get("predicted_n")), None)


def engine_timings(timings: JsonObject) -> EngineTimings | None:
    """llama.cpp's `timings` in seconds; None if the reply has none."""
    prompt, output = (_seconds(timings.get(name)) for name in ("prompt_ms", "predicted_ms"))
    return None if prompt is None and output is None else EngineTimings(prompt_seconds=prompt, output_seconds=output)


def error_text(error: object) -> str:
    """An engine's error in its own words, bounded."""
    for key in ("error", "message", "detail", "msg"):
        if isinstance(error, dict) and error.get(key):
            return error_text(error[key])
    if isinstance(error, str):
        return error[:ERROR_KEPT]
    return msgspec.json.encode(error).decode()[:ERROR_KEPT]


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or milliseconds < 0:
        return None
    return milliseconds / 1000


def _is_object(arguments: str) -> bool:
    return isinstance(decode(arguments), dict)
