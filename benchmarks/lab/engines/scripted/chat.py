"""The `openai-chat` dialect as llama.cpp's server writes it: reads a request, writes a reply whole or as events.

Usage in a stream comes in a last chunk with empty `choices`, only when `stream_options.include_usage` asked for it;
`timings` come with the last chunk in any case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.lab.engines.scripted.talk import (
    Answering,
    Beat,
    Call,
    Conversation,
    Piece,
    Reply,
    Tool,
    Usage,
    all_text,
    pieces,
)


def read(body: Mapping[str, Any]) -> Conversation:
    """The request as a conversation."""
    messages = body.get("messages") or []
    tools = tuple(_tool(each["function"]) for each in body.get("tools") or [] if "function" in each)
    return Conversation(
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        usage_wanted=bool((body.get("stream_options") or {}).get("include_usage")),
        system="\n".join(_text(each) for each in messages if each.get("role") in ("system", "developer")),
        users=tuple(_text(each) for each in messages if each.get("role") == "user"),
        prompt=all_text([body.get("tools") or [], messages]),
        results=sum(each.get("role") == "tool" for each in messages),
        tools=tools,
        cap=body.get("max_completion_tokens") or body.get("max_tokens"),
    )


def whole(reply: Reply, to: Answering, usage: Usage) -> dict[str, Any]:
    """The reply in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            _call(Piece(kind="call", call=call, index=index), to) for index, call in enumerate(reply.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    counts = {"usage": _usage(usage), "timings": _timings(usage)} if reply.usage else {}
    return {**_envelope(to, "chat.completion"), "choices": [choice], **counts}


def events(reply: Reply, to: Answering, usage: Callable[[], Usage]) -> Iterator[Beat]:
    """The reply as chunks; the first carries only the role. `usage` is asked at the start and at the end."""
    yield Beat(data=_chunk(to, {"role": "assistant", "content": None}))
    for piece in pieces(reply):
        yield Beat(data=_fragment(piece, to), tokens=piece.tokens, reasoning=piece.kind == "reasoning")
    yield Beat(data=_closing(reply, to, usage()))


def _fragment(piece: Piece, to: Answering) -> bytes:
    if piece.kind == "reasoning":
        return _chunk(to, {"reasoning_content": piece.text})
    if piece.kind == "text":
        return _chunk(to, {"content": piece.text})
    full = {"index": piece.index, **_call(piece, to)}
    text = full["function"]["arguments"]
    full["function"]["arguments"] = ""
    halves = (text[: len(text) // 2], text[len(text) // 2 :])
    rest = [{"index": piece.index, "function": {"arguments": half}} for half in halves]
    return b"".join(_chunk(to, {"tool_calls": [each]}) for each in [full, *rest])


def _closing(reply: Reply, to: Answering, usage: Usage) -> bytes:
    """Finish reason, usage if asked for, end mark."""
    last: dict[str, Any] = {**_envelope(to, "chat.completion.chunk"), "choices": [_choice({}, _finish(reply))]}
    wanted = reply.usage and to.conversation.usage_wanted
    if reply.usage and not wanted:
        last["timings"] = _timings(usage)
    counts = {"choices": [], "usage": _usage(usage), "timings": _timings(usage)}
    tail = _event({**_envelope(to, "chat.completion.chunk"), **counts}) if wanted else b""
    return _event(last) + tail + b"data: [DONE]\n\n"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _tool(function: Mapping[str, Any]) -> Tool:
    schema = function.get("parameters") or {}
    return Tool(
        name=str(function.get("name", "")),
        properties=schema.get("properties") or {},
        required=tuple(schema.get("required") or ()),
    )


def _call(piece: Piece, to: Answering) -> dict[str, Any]:
    call = piece.call or Call(name="", arguments="")
    return {
        "id": f"call_{to.number}_{piece.index}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish(reply: Reply) -> str:
    if reply.length:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _envelope(to: Answering, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{to.number}",
        "object": kind,
        "created": to.created,
        "model": to.model,
        "system_fingerprint": "scripted",
    }


def _choice(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _chunk(to: Answering, delta: Mapping[str, Any]) -> bytes:
    return _event({**_envelope(to, "chat.completion.chunk"), "choices": [_choice(delta)]})


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _timings(usage: Usage) -> dict[str, Any]:
    return {
        "cache_n": usage.cached,
        "prompt_n": usage.prompt - usage.cached,
        "prompt_ms": usage.prefill_seconds * 1000,
        "predicted_n": usage.output,
        "predicted_ms": usage.output_seconds * 1000,
    }
