"""The three wire dialects, read without touching a byte: what a request asks for, what a reply says.

Pure: bytes in, records out. Covers requests and replies, streaming and not, of the table `DIALECTS`; tool calls
written as text (`textual`), errors by kind (`complaints`), declared rewrites (`rewrites`), how two prompts differ
(`prefix`).
It does not know connections, clocks or files; `meter` feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.lab.dialects import chat, messages, responses
from benchmarks.lab.dialects.complaints import kind_of_error
from benchmarks.lab.dialects.facts import DialectReader, Reply, RequestFacts, decode, engine_timings, obj, timing_tokens
from benchmarks.lab.dialects.rewrites import Rewrite, rewrite, rewrites_of
from benchmarks.lab.model import Dialect, Tokens

__all__ = [
    "DIALECTS",
    "DialectReader",
    "Reply",
    "RequestFacts",
    "Rewrite",
    "decode",
    "dialect_of",
    "engine_timings",
    "kind_of_error",
    "obj",
    "read_request",
    "rewrite",
    "rewrites_of",
    "tokens_of",
]

DIALECTS: Final[Mapping[Dialect, DialectReader]] = {
    "openai-chat": chat.READER,
    "openai-responses": responses.READER,
    "anthropic-messages": messages.READER,
}


def dialect_of(method: str, target: str) -> Dialect | None:
    """The dialect of a request by its method and target; None: not a model call (models, props, count_tokens)."""
    path = target.partition("?")[0].rstrip("/")
    if method != "POST":
        return None
    return next((name for name, reader in DIALECTS.items() if path.endswith(reader.path.removeprefix("/v1"))), None)


def read_request(dialect: Dialect, body: bytes) -> RequestFacts:
    """What `body` asks for; a body that is no JSON object asks for nothing."""
    return DIALECTS[dialect].request(obj(decode(body)))


def tokens_of(dialect: Dialect, reply: Reply) -> Tokens:
    """Normalised counts: from `usage`, each gap filled from llama.cpp's `timings`; what neither tells stays None."""
    told, timed = DIALECTS[dialect].usage(reply.usage), timing_tokens(reply.timings)
    total = told.prompt_total if told.prompt_total is not None else timed.prompt_total
    cached = told.prompt_cached if told.prompt_cached is not None else timed.prompt_cached
    return Tokens(
        prompt_total=total,
        prompt_cached=cached,
        prompt_new=total - cached if total is not None and cached is not None and cached <= total else None,
        output=told.output if told.output is not None else timed.output,
        reasoning=told.reasoning,
    )
