"""The `anthropic-messages` dialect: reads a request, writes a reply whole or as events.

The prompt's counts come in `message_start`, the output's only in `message_delta`, and `input_tokens` leaves out what
was cached; so do llama.cpp's server and the vendor's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.lab.engines.scripted.talk import (
    Answering,
    Beat,
    Conversation,
    Piece,
    Reply,
    Tool,
    Usage,
    all_text,
    pieces,
)


def read(body: Mapping[str, Any]) -> Conversation:
    """The request as a conversation; a `system` message in the middle counts as system text."""
    messages = body.get("messages") or []
    mid_system = [_text(each) for each in messages if each.get("role") == "system"]
    return Conversation(
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        usage_wanted=True,
        system="\n".join([_blocks_text(body.get("system")), *mid_system]),
        users=tuple(_text(each) for each in messages if each.get("role") == "user"),
        prompt=all_text([body.get("system") or "", body.get("tools") or [], messages]),
        results=sum(_is_result(block) for each in messages for block in _blocks(each.get("content"))),
        tools=tuple(_tool(each) for each in body.get("tools") or [] if "input_schema" in each),
        cap=body.get("max_tokens"),
    )


def whole(reply: Reply, to: Answering, usage: Usage) -> dict[str, Any]:
    """The reply in one piece. Arguments that are no JSON stay the text they are."""
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": "scripted"})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for index, call in enumerate(reply.calls):
        content.append({**_tool_use(index, call.name, to), "input": _parsed(call.arguments)})
    counts = {"usage": {**_prompt_usage(usage), "output_tokens": usage.output}} if reply.usage else {}
    return {**_message(to), "content": content, "stop_reason": _stop(reply), **counts}


def events(reply: Reply, to: Answering, usage: Callable[[], Usage]) -> Iterator[Beat]:
    """The reply as events: every kind of content, and every call, is a numbered block that is opened and closed."""
    told = {"usage": {**_prompt_usage(usage()), "output_tokens": 0}} if reply.usage else {}
    yield Beat(data=_event("message_start", {"message": {**_message(to), **told}}))
    index, open_kind = -1, ""
    for piece in pieces(reply):
        data = b""
        if piece.kind != open_kind or piece.kind == "call":
            data += _stop_block(index, open_kind)
            index, open_kind = index + 1, piece.kind
            data += _event("content_block_start", {"index": index, "content_block": _empty_block(piece, to)})
        data += b"".join(_delta(index, delta) for delta in _deltas(piece))
        yield Beat(data=data, tokens=piece.tokens, reasoning=piece.kind == "reasoning")
    yield Beat(data=_stop_block(index, open_kind) + _closing(reply, usage()))


def _closing(reply: Reply, usage: Usage) -> bytes:
    told = {"usage": {"output_tokens": usage.output}} if reply.usage else {}
    delta = {"stop_reason": _stop(reply), "stop_sequence": None}
    return _event("message_delta", {"delta": delta, **told}) + _event("message_stop", {})


def _empty_block(piece: Piece, to: Answering) -> dict[str, Any]:
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if piece.kind == "text" or piece.call is None:
        return {"type": "text", "text": ""}
    return {**_tool_use(piece.index, piece.call.name, to), "input": {}}


def _deltas(piece: Piece) -> list[dict[str, Any]]:
    if piece.kind == "reasoning":
        return [{"type": "thinking_delta", "thinking": piece.text}]
    if piece.kind == "text" or piece.call is None:
        return [{"type": "text_delta", "text": piece.text}]
    text = piece.call.arguments
    halves = (text[: len(text) // 2], text[len(text) // 2 :])
    return [{"type": "input_json_delta", "partial_json": half} for half in halves]


def _stop_block(index: int, kind: str) -> bytes:
    signature = _delta(index, {"type": "signature_delta", "signature": "scripted"}) if kind == "reasoning" else b""
    return signature + _event("content_block_stop", {"index": index}) if kind else b""


def _delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return _event("content_block_delta", {"index": index, "delta": delta})


def _event(kind: str, body: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body})}\n\n".encode()


def _message(to: Answering) -> dict[str, Any]:
    return {
        "id": f"msg_{to.number}",
        "type": "message",
        "role": "assistant",
        "model": to.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _tool_use(index: int, name: str, to: Answering) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{to.number}_{index}", "name": name}


def _stop(reply: Reply) -> str:
    if reply.length:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn"


def _prompt_usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
    }


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _tool(tool: Mapping[str, Any]) -> Tool:
    schema = tool.get("input_schema") or {}
    return Tool(
        name=str(tool.get("name", "")),
        properties=schema.get("properties") or {},
        required=tuple(schema.get("required") or ()),
    )


def _blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


def _blocks_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in _blocks(content))


def _text(message: Mapping[str, Any]) -> str:
    return _blocks_text(message.get("content"))
