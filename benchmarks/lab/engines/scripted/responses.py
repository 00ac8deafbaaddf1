"""The `openai-responses` dialect: reads a request, writes a reply whole or as events.

Usage comes in `response.completed`, whose status says `completed` even when the output cap cut the reply, as
llama.cpp's server does (field case B45). Tools of type `function` and `custom` are read; others are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
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

Item = dict[str, Any]


def read(body: Mapping[str, Any]) -> Conversation:
    """The request as a conversation."""
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    system = [str(body.get("instructions") or ""), *(_text(each) for each in items if _is_system(each))]
    return Conversation(
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        usage_wanted=True,
        system="\n".join(system),
        users=tuple(_text(each) for each in items if each.get("role") == "user"),
        prompt=all_text([body.get("instructions") or "", body.get("tools") or [], items]),
        results=sum(str(each.get("type", "")).endswith("_call_output") for each in items),
        tools=tuple(_tool(each) for each in body.get("tools") or [] if each.get("type") in ("function", "custom")),
        cap=body.get("max_output_tokens"),
    )


def whole(reply: Reply, to: Answering, usage: Usage) -> dict[str, Any]:
    """The reply in one piece."""
    return _response(to, "completed", _items(reply, to), usage if reply.usage else None)


def events(reply: Reply, to: Answering, usage: Callable[[], Usage]) -> Iterator[Beat]:
    """The reply as numbered events: items are added, filled and done one after the other."""
    numbers = count()

    def event(kind: str, **body: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": next(numbers), **body}
        return f"event: {kind}\ndata: {json.dumps(numbered)}\n\n".encode()

    began = _response(to, "in_progress", [], None)
    yield Beat(data=event("response.created", response=began) + event("response.in_progress", response=began))
    done: list[Item] = []
    item: Item | None = None
    for piece in pieces(reply):
        data = b""
        if item is None or item["type"] != _kind(piece) or piece.kind == "call":
            data += _finish_item(event, item, done)
            item = _empty_item(piece, to, len(done))
            data += event("response.output_item.added", output_index=len(done), item=item)
            data += _open_part(event, item, len(done))
        data += _fill(event, item, piece, len(done))
        yield Beat(data=data, tokens=piece.tokens, reasoning=piece.kind == "reasoning")
    data = _finish_item(event, item, done)
    final = _response(to, "completed", done, usage() if reply.usage else None)
    yield Beat(data=data + event("response.completed", response=final))


def _fill(event: Callable[..., bytes], item: Item, piece: Piece, index: int) -> bytes:
    """Add a piece to the item and tell of it."""
    where = {"item_id": item["id"], "output_index": index}
    if piece.call is None:
        part = item["content"][0]
        part["text"] += piece.text
        name = "response.reasoning_text.delta" if piece.kind == "reasoning" else "response.output_text.delta"
        return event(name, **where, content_index=0, delta=piece.text)
    field = "input" if piece.call.custom else "arguments"
    name = f"response.{'custom_tool_call_input' if piece.call.custom else 'function_call_arguments'}"
    text = piece.call.arguments
    item[field] = text
    halves = (text[: len(text) // 2], text[len(text) // 2 :])
    deltas = b"".join(event(f"{name}.delta", **where, delta=half) for half in halves)
    return deltas + event(f"{name}.done", **where, **{field: text})


def _open_part(event: Callable[..., bytes], item: Item, index: int) -> bytes:
    """A message has parts; the others are filled directly."""
    if item["type"] == "message":
        part: Item = {"type": "output_text", "text": "", "annotations": []}
        item["content"] = [part]
        return event(
            "response.content_part.added", item_id=item["id"], output_index=index, content_index=0, part=dict(part)
        )
    if item["type"] == "reasoning":
        item["content"] = [{"type": "reasoning_text", "text": ""}]
    return b""


def _finish_item(event: Callable[..., bytes], item: Item | None, done: list[Item]) -> bytes:
    """Close the open item, if any, and keep it."""
    if item is None:
        return b""
    index, data = len(done), b""
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    if item["type"] == "message":
        part = item["content"][0]
        data += event("response.output_text.done", **where, text=part["text"])
        data += event("response.content_part.done", **where, part=part)
    elif item["type"] == "reasoning":
        data += event("response.reasoning_text.done", **where, text=item["content"][0]["text"])
    item["status"] = "completed"
    done.append(item)
    return data + event("response.output_item.done", output_index=index, item=item)


def _items(reply: Reply, to: Answering) -> list[Item]:
    """The finished items of a reply."""
    found: list[Item] = []
    if reply.reasoning:
        thought = [{"type": "reasoning_text", "text": reply.reasoning}]
        found.append({**_base("reasoning", to, 0), "summary": [], "content": thought})
    if reply.text:
        content: list[Item] = [{"type": "output_text", "text": reply.text, "annotations": []}]
        found.append({**_base("message", to, len(found)), "role": "assistant", "content": content})
    for index, call in enumerate(reply.calls):
        piece = Piece(kind="call", call=call, index=index)
        item = _empty_item(piece, to, len(found))
        item["input" if call.custom else "arguments"] = call.arguments
        found.append(item)
    return [{**item, "status": "completed"} for item in found]


def _empty_item(piece: Piece, to: Answering, index: int) -> Item:
    base: Item = _base(_kind(piece), to, index)
    if piece.kind == "reasoning":
        return {**base, "summary": []}
    if piece.call is None:
        return {**base, "role": "assistant", "content": []}
    field = "input" if piece.call.custom else "arguments"
    return {**base, "call_id": f"call_{to.number}_{piece.index}", "name": piece.call.name, field: ""}


def _base(kind: str, to: Answering, index: int) -> Item:
    short = {"message": "msg", "reasoning": "rs"}.get(kind, "fc")
    return {"type": kind, "id": f"{short}_{to.number}_{index}", "status": "in_progress"}


def _kind(piece: Piece) -> str:
    if piece.call is not None:
        return "custom_tool_call" if piece.call.custom else "function_call"
    return "reasoning" if piece.kind == "reasoning" else "message"


def _response(to: Answering, status: str, output: list[Item], usage: Usage | None) -> dict[str, Any]:
    told = None
    if usage is not None:
        told = {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.output,
        }
    return {
        "id": f"resp_{to.number}",
        "object": "response",
        "created_at": to.created,
        "status": status,
        "model": to.model,
        "output": output,
        "usage": told,
    }


def _tool(tool: Mapping[str, Any]) -> Tool:
    schema = tool.get("parameters") or {}
    return Tool(
        name=str(tool.get("name", "")),
        custom=tool.get("type") == "custom",
        properties=schema.get("properties") or {},
        required=tuple(schema.get("required") or ()),
    )


def _is_system(item: Mapping[str, Any]) -> bool:
    return item.get("role") in ("system", "developer")


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or [])
