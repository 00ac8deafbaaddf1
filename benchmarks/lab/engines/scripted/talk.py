"""The records between a dialect, a script and the server: what was asked, and what to answer.

Tokens here are words: text is split at white space, and every word is one token. That is plain enough to check by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Literal

from benchmarks.lab.model import Record


class Tool(Record, frozen=True, kw_only=True):
    """A tool as the client offers it. `custom`: takes free text instead of JSON arguments (Responses only)."""

    name: str
    custom: bool = False
    properties: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()


class Conversation(Record, frozen=True, kw_only=True):
    """One request, whatever its dialect.

    `results` counts the tool results it holds: the script's step, so that a repeated request gets the same reply.
    `turn` counts the requests of this trial that offered tools, this one excluded. `prompt` is all of it as text.
    """

    model: str
    stream: bool
    usage_wanted: bool  # chat: stream_options.include_usage; the other dialects always tell
    system: str
    users: tuple[str, ...]  # texts of the user, in order
    prompt: str
    results: int
    tools: tuple[Tool, ...]
    cap: int | None
    turn: int = 0


class Call(Record, frozen=True, kw_only=True):
    """A tool call to make; `arguments` is the raw text, JSON or deliberately not."""

    name: str
    arguments: str
    custom: bool = False


class Reply(Record, frozen=True, kw_only=True):
    """What to answer and how.

    The first token leaves `prefill_seconds` after the request, each next one `token_seconds` later.
    `endless`: the text is repeated until the client goes. `end`: `cut` closes the connection in the middle, `never`
    does not answer at all. `problem`: an error body, sent with `status`.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    model: str | None = None
    usage: bool = True
    prefill_seconds: float = 0.0
    token_seconds: float = 0.0
    endless: bool = False
    end: Literal["whole", "cut", "never"] = "whole"
    length: bool = False  # stopped by the cap
    status: int = 200
    problem: Mapping[str, Any] | None = None


class Usage(Record, frozen=True, kw_only=True):
    """Counts of one exchange, in words. `seconds` are prefill and decode."""

    prompt: int
    cached: int
    output: int
    reasoning: int = 0
    prefill_seconds: float = 0.0
    output_seconds: float = 0.0


class Piece(Record, frozen=True, kw_only=True):
    """The smallest thing that is streamed: one word, or one whole tool call. `tokens` is what it counts for."""

    kind: Literal["reasoning", "text", "call"]
    text: str = ""
    call: Call | None = None
    index: int = 0
    tokens: int = 1


class Beat(Record, frozen=True, kw_only=True):
    """Bytes that leave together, and the tokens they hold (0: framing)."""

    data: bytes
    tokens: int = 0
    reasoning: bool = False


class Answering(Record, frozen=True, kw_only=True):
    """What a dialect needs beside the reply: the number of the exchange (for ids) and the name that answers."""

    number: int
    model: str
    created: int
    conversation: Conversation


def words(text: str) -> list[str]:
    """Words with the white space around them: joined they give the text again."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def count_tokens(text: str) -> int:
    """Number of words."""
    return len(text.split())


def pieces(reply: Reply) -> Iterator[Piece]:
    """The reply cut into pieces, in the order in which a model would produce them."""
    for word in words(reply.reasoning):
        yield Piece(kind="reasoning", text=word)
    for _ in count() if reply.endless else range(1):
        for word in words(reply.text):
            yield Piece(kind="text", text=word)
    for index, call in enumerate(reply.calls):
        yield Piece(kind="call", call=call, index=index, tokens=max(1, count_tokens(call.arguments)))


def all_text(value: Any) -> str:
    """All text in a JSON value, keys left out, in order; the plainest rendering of a prompt."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(all_text(each) for each in value.values())
    if isinstance(value, list):
        return "\n".join(all_text(each) for each in value)
    return str(value)
