"""The dialect `anthropic-messages`: POST /v1/messages (Anthropic's reference; llama.cpp, Ollama, LM Studio, vLLM).

`usage.input_tokens` leaves the cached part out: the whole prompt is the sum. A stream tells prompt counts in
`message_start` and the output count in `message_delta`; some engines send zeros first and the truth in the last.
"""

from __future__ import annotations

import json
from typing import Final

from benchmarks.lab.dialects.facts import (
    DialectReader,
    JsonObject,
    Part,
    Reply,
    RequestFacts,
    content_texts,
    count,
    items,
    obj,
    prompt_tokens,
    sampling,
    text,
    text_or_none,
)
from benchmarks.lab.dialects.parts import flat
from benchmarks.lab.model import Tokens


def request(body: JsonObject) -> RequestFacts:
    """What a messages request asks for. Tool results stand in user messages but are not user text."""
    messages = [obj(message) for message in items(body.get("messages"))]
    systems = content_texts(body.get("system"))
    systems += [t for m in messages if m.get("role") == "system" for t in content_texts(m.get("content"))]
    return RequestFacts(
        model=text_or_none(body.get("model")),
        stream=body.get("stream") is True,
        output_cap=count(body.get("max_tokens")),
        sampler=sampling(body),
        tools=tuple(text(obj(tool).get("name")) for tool in items(body.get("tools"))),
        user_texts=tuple(t for m in messages if m.get("role") == "user" for t in content_texts(m.get("content"))),
        system_text="\n".join(systems),
    )


def parts(body: JsonObject) -> list[Part]:
    """Prompt pieces: system, tools, messages."""
    return (
        flat("system", body.get("system")) + flat("tools", body.get("tools")) + flat("messages", body.get("messages"))
    )


def event(reply: Reply, name: str, data: JsonObject, at: float) -> None:
    """One event of a messages stream. The data's `type` decides; the event's name only where that is missing."""
    kind = text(data.get("type")) or name
    if kind == "message_start":
        message = obj(data.get("message"))
        reply.model = text_or_none(message.get("model")) or reply.model
        _merge_usage(reply, obj(message.get("usage")))
    elif kind == "content_block_start":
        _block(reply, _key(data), obj(data.get("content_block")), at)
    elif kind == "content_block_delta":
        _delta(reply, _key(data), obj(data.get("delta")), at)
    elif kind == "message_delta":
        reply.finish = text_or_none(obj(data.get("delta")).get("stop_reason")) or reply.finish
        _merge_usage(reply, obj(data.get("usage")))
    elif kind == "message_stop":
        reply.done = True
    elif kind == "error":
        reply.fail(data)
    reply.timings = obj(data.get("timings")) or reply.timings


def whole(reply: Reply, data: JsonObject) -> None:
    """A messages reply in one piece."""
    reply.model = text_or_none(data.get("model"))
    reply.finish = text_or_none(data.get("stop_reason"))
    reply.usage = obj(data.get("usage"))
    reply.timings = obj(data.get("timings"))
    reply.done = "content" in data
    for index, block in enumerate(items(data.get("content"))):
        _block(reply, str(index), obj(block), 0.0)


def usage(data: JsonObject) -> Tokens:
    """Counts of a messages `usage`: input, cache reads and cache writes together are the prompt."""
    fresh, cached = count(data.get("input_tokens")), count(data.get("cache_read_input_tokens"))
    written = count(data.get("cache_creation_input_tokens")) or 0
    total = None if fresh is None else fresh + written + (cached or 0)
    return prompt_tokens(total, cached, count(data.get("output_tokens")), None)


def _key(data: JsonObject) -> str:
    return str(count(data.get("index")) or 0)


def _block(reply: Reply, key: str, block: JsonObject, at: float) -> None:
    kind = block.get("type")
    if kind == "text":
        reply.say(block.get("text"), at)
    elif kind == "thinking":
        reply.think(block.get("thinking"), at)
    elif kind == "tool_use":
        reply.token(at, answer=True)
        call = reply.call(key)
        call.name, call.call_id, call.empty_is_object = text(block.get("name")), text(block.get("id")), True
        if block.get("input"):
            call.replace(json.dumps(block["input"]))


def _delta(reply: Reply, key: str, delta: JsonObject, at: float) -> None:
    kind = delta.get("type")
    if kind == "text_delta":
        reply.say(delta.get("text"), at)
    elif kind == "thinking_delta":
        reply.think(delta.get("thinking"), at)
    elif kind == "input_json_delta" and delta.get("partial_json"):
        reply.token(at, answer=True)
        reply.call(key).add(text(delta.get("partial_json")))


def _merge_usage(reply: Reply, told: JsonObject) -> None:
    """The latest figure of each field counts, but a zero never replaces a count told before."""
    for name, value in told.items():
        if value is not None and (value or not reply.usage.get(name)):
            reply.usage[name] = value


READER: Final = DialectReader(
    path="/v1/messages",
    mark="content",
    request=request,
    parts=parts,
    event=event,
    whole=whole,
    usage=usage,
    cut_reasons=frozenset({"max_tokens", "model_context_window_exceeded"}),
)
